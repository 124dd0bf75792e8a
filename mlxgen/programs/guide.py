"""Programs, and the ``g`` of ``async def program(g)`` that they work with.

A ``Program`` is a specification that can be used again. Its guide has everything that it can await
or ask for; ``running`` drives the coroutine. Each thing to await is a generator here: it yields how
the branch goes on, is sent the tokens that this appended, and returns the result of the await.
Invariant: everything that a program learns from its guide is recorded, so that a replayed copy
learns the same.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial, wraps
from typing import Any, Concatenate, ParamSpec, TypeAlias, TypeVar

from ..engine import Branch, Session, Splice
from ..engine.branches import token_ids
from ..errors import DeadEndError, OptionError
from ..filters import Choice, Filter, Lark, Regex, Specification, Substring
from ..text import TextDecoder, Transcript
from ..tokens import Token, Vocabulary
from .running import Awaited, BranchHistory, Label, Running, Step
from .shared import Forked, Task, Variables
from .token_set import TokenSet

_EXPRESSIONS = 32  # expressions whose tokens are remembered, for each vocabulary

P = ParamSpec("P")
T = TypeVar("T")
ProgramFunction: TypeAlias = Callable[["Guide"], Coroutine[Any, Any, Any]]


def step(
    make: Callable[Concatenate[Guide, P], Step[T]],
) -> Callable[Concatenate[Guide, P], Awaited[T]]:
    """Makes a generator method of the guide return something to await."""
    what = make.__name__.strip("_").replace("_", " ")

    @wraps(make)
    def ask(guide: Guide, /, *args: P.args, **given: P.kwargs) -> Awaited[T]:
        return Awaited(guide._running, what, partial(make, guide, *args, **given))

    return ask


class Guide:
    """The one argument of a program; every branch has its own.

    To read: ``vocabulary``, ``vocab_size``, ``branch`` (its name), ``tokens`` (of the prompt, then
    generated), ``text`` (generated), ``logprob`` (of all tokens sampled so far, if
    ``top_logprobs`` is given).
    """

    __slots__ = ("_running",)

    def __init__(self, running: Running) -> None:
        self._running = running

    def __repr__(self) -> str:
        return f"<Guide of branch {self.branch}>"

    # ---- the state of the branch -----------------------------------------------------------

    @property
    def vocabulary(self) -> Vocabulary:
        """The tokenizer's facts."""
        return self._running.history.vocabulary

    @property
    def vocab_size(self) -> int:
        """The width of the logits."""
        return self._running.vocab_size

    @property
    def branch(self) -> tuple[int, ...]:
        """The name of this branch; ``()`` is the root."""
        return self._running.task.branch

    @property
    def tokens(self) -> tuple[Token, ...]:
        """The prompt's tokens and the generated ones."""
        return tuple(self._running.history.tokens)

    @property
    def text(self) -> str:
        """The generated text, up to the last complete character."""
        return self._running.history.text

    @property
    def logprob(self) -> float:
        """The sum of the sampled tokens' log-probabilities; 0 if none are reported."""
        return self._running.once("logprob", lambda: sum(self._running.logprobs))

    def label(self) -> Label:
        """A label for this place; going back to it keeps the text before it as it is spelled."""
        return self._running.history.label()

    def tokenize(self, text: str) -> list[Token]:
        """The tokens of a text that continues another."""
        if not isinstance(text, str):
            raise OptionError("text", f"expected a string, got {text!r}")
        return self.vocabulary.continue_with(text.encode())

    def token_set(self, tokens: Iterable[Token] | None = None) -> TokenSet:
        """A set of tokens; all tokens if none are given."""
        size = self.vocab_size
        return TokenSet.everything(size) if tokens is None else TokenSet(tokens, size)

    def tokens_like(self, pattern: str | re.Pattern[str]) -> TokenSet:
        """The ordinary tokens whose whole text a Python regular expression matches."""
        try:
            expression = re.compile(pattern)
        except (re.error, TypeError) as error:
            raise OptionError(
                "pattern", f"expected a regular expression, got {pattern!r}: {error}"
            ) from None
        vocabulary = self.vocabulary
        matching = vocabulary.derived(
            "tokens like", lambda: lru_cache(_EXPRESSIONS)(partial(_matching, vocabulary))
        )
        found = matching(expression)
        return TokenSet((t for t in found if t < self.vocab_size), self.vocab_size)

    # ---- text ------------------------------------------------------------------------------

    def fixed(self, text: str | Sequence[Token]) -> Awaited[None]:
        """Appends text, or tokens as they are. If the text that ``gen`` writes next may join the
        end of this one in a token, the model spells that end anew."""
        return self._fixed(text) if isinstance(text, str) else self._fixed_tokens(text)

    @step
    def _fixed(self, text: str) -> Step[None]:
        yield from put(0, self._running.history.after_prompt(text.encode()))

    @step
    def _fixed_tokens(self, text: Sequence[Token]) -> Step[None]:
        tokens = token_ids("text", text, self.vocab_size)
        yield from put(0, [*self._running.history.unspelled, *tokens])

    @step
    def gen(
        self,
        *filters: Specification | Filter,
        regex: str | re.Pattern[str] | None = None,
        lark: str | None = None,
        stop: str | Sequence[str] = (),
        max_tokens: int | None = None,
        temperature: float | None = None,
    ) -> Step[str]:
        """Generates text and returns it.

        The text matches ``filters``, ``regex`` and ``lark``, and ends when nothing but an end
        may follow. It also ends before a ``stop`` string, which is not part of the text; when
        the model ends it (the end token is not appended); and after ``max_tokens``.
        """
        rules: list[Specification | Filter] = [*filters]
        if regex is not None:
            rules.append(Regex(regex))
        if lark is not None:
            rules.append(Lark(lark))
        if max_tokens == 0:
            return ""
        options = {"filters": rules, "stop": stop, "max_tokens": max_tokens}
        return (yield from generate(self._running, options, self._free(temperature)))

    def choose(self, options: Iterable[str], *, temperature: float | None = None) -> Awaited[str]:
        """Generates exactly one of several texts and returns it."""
        return self.gen(Choice(options), temperature=temperature)

    def substring(
        self, text: str, *, max_tokens: int | None = None, temperature: float | None = None
    ) -> Awaited[str]:
        """Generates a passage copied from ``text``, word by word, and returns it."""
        return self.gen(Substring(text), max_tokens=max_tokens, temperature=temperature)

    @step
    def token(
        self, allowed: Iterable[Token] | None = None, *, temperature: float | None = None
    ) -> Step[Token | None]:
        """Samples one token (of ``allowed``, if given); ``None`` for an end token, not appended."""
        mask = self.token_set(allowed)
        drawn = yield [replace(self._free(temperature), sample_mask=mask)]
        return drawn[0] if drawn else None

    def _free(self, temperature: float | None) -> Branch:
        """A branch that samples any token, and takes back an end token."""
        size = self.vocab_size
        ends = [token for token in self.vocabulary.eos if token < size]
        splices = [Splice(ends, backtrack=1)] if ends else []
        return Branch(0, range(size), (), splices, temperature)

    @step
    def backtrack(self, label: Label) -> Step[None]:
        """Takes back all text after a label. StateError if its place was taken back."""
        if not isinstance(label, Label):
            raise OptionError(
                "label",
                f"expected a label, got {label!r}; write start = g.label() at the place to go "
                "back to, and later await g.backtrack(start)",
            )
        yield from put(*self._running.history.find(label))

    # ---- branches --------------------------------------------------------------------------

    @step
    def fork(self, programs: int | Sequence[ProgramFunction]) -> Step[Any]:
        """Forks; the branches share everything up to here.

        ``fork(n)`` continues in n branches, this one included, and gives each a ``Forked``: its
        index and the tasks of all. ``fork([f, g])`` starts a program in each new branch, and
        returns their tasks to this one, which continues.
        """
        if isinstance(programs, int):
            if isinstance(programs, bool) or programs < 1:
                raise OptionError("fork", f"expected 1 or more branches, got {programs}")
            return Forked(0, (yield from self._running.split([None] * (programs - 1))))
        if not isinstance(programs, Iterable):
            raise OptionError("fork", f"expected a number or async functions, got {programs!r}")
        functions = list(programs)
        for function in functions:
            if not callable(function):
                raise OptionError("fork", f"expected async functions, got {function!r}")
        starts = [partial(begin, function) for function in functions]
        return (yield from self._running.split(starts))[1:]

    @step
    def wait(self, *tasks: Task) -> Step[list[Any]]:
        """Waits until the programs of other branches have returned; returns their values, in order.

        StateError, when it is awaited, if one of them failed or ended early.
        """
        for task in tasks:
            if not isinstance(task, Task):
                raise OptionError("tasks", f"expected tasks of a fork, got {task!r}")
        for task in tasks:
            if not task.over:
                yield task.end
        return [task.result() for task in tasks]

    # ---- variables -------------------------------------------------------------------------

    def get(self, name: str) -> str | None:
        """The text of a variable that all branches share; ``None`` if it has none yet."""
        return self._running.once(f"get {name}", lambda: self._running.variables.get(name))

    def set(self, name: str, text: str) -> None:
        """Gives a variable a text."""
        self._running.once(f"set {name}", lambda: self._running.variables.set(name, text))

    def append(self, name: str, text: str) -> str:
        """Appends to the text of a variable, or starts one; returns the whole text."""
        return self._running.once(
            f"append to {name}", lambda: self._running.variables.append(name, text)
        )

    def compare_and_swap(self, name: str, expected: str | None, text: str) -> bool:
        """Sets a variable if it has the expected text (``None``: none yet); returns True if so."""
        return self._running.once(
            f"compare and swap {name}",
            lambda: self._running.variables.compare_and_swap(name, expected, text),
        )

    @step
    def until(self, name: str, is_so: Callable[[str], bool] | None = None) -> Step[str]:
        """Waits until a variable has a text for which ``is_so`` holds; returns the text."""
        variables = self._running.variables
        while (text := variables.get(name)) is None or not (is_so is None or is_so(text)):
            yield variables.wait(name)
        return text


@dataclass(frozen=True, slots=True)
class Program:
    """An async function of a ``Guide``, for example ``async def p(g): await g.fixed("Hello")``.

    Each generation gets its own run and its own variables; ``variables`` are their initial texts.
    """

    function: ProgramFunction
    variables: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise OptionError(
                "program", f"expected an async function of a guide, got {self.function!r}"
            )
        if not isinstance(self.variables, Mapping):
            raise OptionError(
                "variables", f"expected a mapping of names to texts, got {self.variables!r}"
            )

    def bind(
        self,
        vocabulary: Vocabulary,
        vocab_size: int,
        *,
        prompt: Sequence[Token],
        opens_text: bool,
        removed: bytes = b"",
    ) -> Running:
        """The controller of the root, for one generation."""
        history = BranchHistory(prompt, vocabulary, opens_text=opens_text, removed=removed)
        start = partial(begin, self.function)
        return Running(start, history, vocab_size, Variables(self.variables))


def begin(function: ProgramFunction, running: Running) -> Coroutine[Any, Any, Any]:
    """Start a program with the guide of its branch."""
    coroutine = function(Guide(running))
    if not inspect.iscoroutine(coroutine):
        raise OptionError("program", f"expected an async function, got {function!r}")
    return coroutine


def put(back: int, tokens: Sequence[Token]) -> Step[None]:
    """Takes back the newest ``back`` tokens and appends ``tokens``; nothing, if both are empty."""
    if back or tokens:
        yield [Branch(back, None, [tokens])]


def generate(running: Running, options: Mapping[str, Any], free: Branch) -> Step[str]:
    """Generates a piece of text; ``free`` samples any token.

    A ``Session`` applies the rules in ``options``; here they become branches. When it is done, the
    history ends with exactly the tokens of its text: a stop is taken back with everything after it,
    and an end token is never appended. First, the last tokens of fixed text that the text may join
    are taken back and spelled anew, together with what is left to spell of the prompt's end.
    """
    history, limit = running.history, options["max_tokens"]
    vocabulary, tokens = history.vocabulary, history.tokens
    session = partial(Session, vocabulary, vocab_size=running.vocab_size, **options)
    opens = history.opens_text and len(tokens) == history.base
    rules, removed, back = None, b"", 0
    unspelled = history.unspelled
    if unspelled or history.newest:
        end = [*tokens[-1 - history.newest :], *unspelled]
        rules = session(prompt=end, heal=True)
        back = len(end) - len(rules.history)  # tokens that are spelled anew
        try:
            rules.mask()
        except DeadEndError:  # nothing that the filters allow joins it
            back = 0
        removed = history.bytes_of(end[len(end) - back :])
        if unspelled:
            yield from put(0, unspelled[: len(unspelled) - back])
    if rules is None or not back:
        rules = session(prompt=None if opens else tokens[-1:])
    if unspelled:
        back = 0  # these were never appended
    written: list[Token] = []  # all that was appended, even after the end of the text
    while rules.finish_reason is None:
        if forced := rules.forced():
            left = None if limit is None else limit - len(written)
            new = yield [Branch(ff_tokens=[forced[:left]])]
        else:
            mask = rules.mask()
            drawn = free if mask is None else replace(free, sample_mask=mask, backtrack=back)
            new, back = (yield [drawn]), 0
            if not new:  # an end token, which is not appended
                break
        for token in new:
            written.append(token)
            if rules.finish_reason is None:
                rules.push_token(token)
    stops = rules.finish_reason == "stop"
    rules.finish()
    text, stays, rest = rules.text, len(written), b""
    if stops:
        decoder = TextDecoder(vocabulary, strip=opens and not removed, skip=len(removed))
        transcript = Transcript(decoder)
        for token in rules.tokens:
            transcript.advance(token)
        stays = transcript.token_at(len(text))
        rest = text[decoder.end(stays) :].encode()
    rest = removed[len(history.bytes_of(written[:stays])) :] + rest
    if stays < len(written) or rest:
        yield from put(len(written) - stays, vocabulary.continue_with(rest) if rest else ())
    return text


def _matching(vocabulary: Vocabulary, expression: re.Pattern[str]) -> list[Token]:
    found = []
    for token in range(vocabulary.size):
        if vocabulary.is_ordinary(token):
            try:
                text = vocabulary.piece(token).decode()
            except UnicodeDecodeError:
                continue
            if expression.fullmatch(text):
                found.append(token)
    return found
