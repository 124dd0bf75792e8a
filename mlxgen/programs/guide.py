"""Programs, and what they work with: the ``g`` of ``async def program(g)``.

A ``Program`` is a specification that can be used again. Its guide has everything that it can await
or ask for; ``running`` drives the coroutine.
Invariant: everything that a program learns here is in its record, so that a replayed copy
learns the same.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any, TypeAlias

from ..engine import Wait
from ..engine.branches import token_ids
from ..errors import OptionError
from ..filters import Choice, Filter, Lark, Regex, Specification, Substring
from ..options.rule import integer
from ..tokens import Token, Vocabulary
from .running import Awaited, Running
from .shared import Task, Variables
from .steps import BACK, FIXED, BranchHistory, Label, gen, put, sample, until
from .token_set import TokenSet

_EXPRESSIONS = 32  # how many expressions' tokens are remembered for each vocabulary

ProgramFunction: TypeAlias = Callable[["Guide"], Coroutine[Any, Any, Any]]


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
        """The generated text, as far as characters are complete."""
        return self._running.history.text

    @property
    def logprob(self) -> float:
        """The sum of the sampled tokens' log-probabilities; 0 if none are reported."""
        return self._running.record.once("logprob", lambda: sum(self._running.logprobs))

    def label(self) -> Label:
        """This place in the text, to go back to; the text before it stays as it is spelled."""
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
        """Appends text, or tokens as they are. If the end of a text may be joined by what ``gen``
        writes after it, the model spells it anew."""
        history = self._running.history
        if isinstance(text, str):
            tokens: Sequence[Token] = self.tokenize(text)
            return Awaited(self._running, FIXED, lambda: put(0, history.after_prompt(tokens)))
        tokens = token_ids("text", text, self.vocab_size)
        whole = partial(history.after_prompt, tokens, as_text=False)
        return Awaited(self._running, "fixed tokens", lambda: put(0, whole()))

    def gen(
        self,
        *filters: Specification | Filter,
        regex: str | re.Pattern[str] | None = None,
        lark: str | None = None,
        stop: str | Sequence[str] = (),
        max_tokens: int | None = None,
        temperature: float | None = None,
    ) -> Awaited[str]:
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
        if not isinstance(stop, Iterable):
            raise OptionError("stop", f"expected a string or a list of strings, got {stop!r}")
        stops = (stop,) if isinstance(stop, str) else tuple(stop)
        if max_tokens is not None:
            max_tokens = integer(None, 0).check("max_tokens", max_tokens)

        history, size = self._running.history, self._running.vocab_size
        return Awaited(
            self._running,
            "gen",
            lambda: gen(history, size, rules, stops, max_tokens, temperature),
        )

    def choose(self, options: Iterable[str], *, temperature: float | None = None) -> Awaited[str]:
        """Generates exactly one of several texts and returns it."""
        return self.gen(Choice(options), temperature=temperature)

    def substring(
        self, text: str, *, max_tokens: int | None = None, temperature: float | None = None
    ) -> Awaited[str]:
        """Generates a passage copied from ``text``, word by word, and returns it."""
        return self.gen(Substring(text), max_tokens=max_tokens, temperature=temperature)

    def token(
        self, allowed: Iterable[Token] | None = None, *, temperature: float | None = None
    ) -> Awaited[Token | None]:
        """Samples one token, of a set if given; ``None``: an end token, which is not appended."""
        chosen = self.token_set(allowed)
        ends = [token for token in self.vocabulary.eos if token < self.vocab_size]
        return Awaited(self._running, "token", lambda: sample(chosen, ends, temperature))

    def backtrack(self, label: Label) -> Awaited[None]:
        """Takes back all text after a label. StateError if its place was taken back."""
        if not isinstance(label, Label):
            raise OptionError(
                "label",
                f"expected a label, got {label!r}; write start = g.label() at the place to go "
                "back to, and later await g.backtrack(start)",
            )
        back, tokens = self._running.history.find(label)
        return Awaited(self._running, BACK, lambda: put(back, tokens))

    # ---- branches --------------------------------------------------------------------------

    def fork(self, programs: int | Sequence[ProgramFunction]) -> Awaited[Any]:
        """Forks; the branches share everything up to here.

        ``fork(n)`` continues in n branches, this one included, and gives each a ``Forked``: its
        index, and the tasks of all. In each of the others the program is replayed with the same
        results of everything it awaited, so its other effects must be harmless if they happen
        twice. ``fork([f, g])`` starts one program in a new branch for each function, and gives
        this one, which continues, their tasks.
        """
        if isinstance(programs, int):
            if isinstance(programs, bool) or programs < 1:
                raise OptionError("fork", f"expected 1 or more branches, got {programs}")
            count = programs
            return Awaited(self._running, "fork", lambda: self._running.split(count, None))
        if not isinstance(programs, Iterable):
            raise OptionError("fork", f"expected a number or async functions, got {programs!r}")
        functions = list(programs)
        for function in functions:
            if not callable(function):
                raise OptionError("fork", f"expected async functions, got {function!r}")
        starts = [partial(begin, function) for function in functions]
        return Awaited(self._running, "fork", lambda: self._running.split(len(starts) + 1, starts))

    def wait(self, *tasks: Task) -> Awaited[list[Any]]:
        """Waits until the programs of other branches have returned; their values, in order.

        StateError, when it is awaited, if one of them failed or ended early.
        """
        for task in tasks:
            if not isinstance(task, Task):
                raise OptionError("tasks", f"expected tasks of a fork, got {task!r}")

        def look() -> list[Any] | None:
            return [task.result() for task in tasks] if all(t.over for t in tasks) else None

        def end() -> Wait:
            return next(task.end for task in tasks if not task.over)

        return Awaited(self._running, "wait", lambda: until(look, end))

    # ---- variables -------------------------------------------------------------------------

    def get(self, name: str) -> str | None:
        """The text of a variable that all branches share; ``None``: it has none yet."""
        return self._running.record.once(f"get {name}", lambda: self._running.variables.get(name))

    def set(self, name: str, text: str) -> None:
        """Gives a variable a text."""
        self._running.record.once(f"set {name}", lambda: self._running.variables.set(name, text))

    def append(self, name: str, text: str) -> str:
        """Appends to the text of a variable, or starts one; returns the whole text."""
        return self._running.record.once(
            f"append to {name}", lambda: self._running.variables.append(name, text)
        )

    def compare_and_swap(self, name: str, expected: str | None, text: str) -> bool:
        """Sets a variable if it has the expected text (``None``: none yet); says whether it had."""
        return self._running.record.once(
            f"compare and swap {name}",
            lambda: self._running.variables.compare_and_swap(name, expected, text),
        )

    def until(self, name: str, is_so: Callable[[str], bool] | None = None) -> Awaited[str]:
        """Waits until a variable has a text for which ``is_so`` holds; returns the text."""
        variables = self._running.variables

        def look() -> str | None:
            text = variables.get(name)
            return text if text is None or is_so is None or is_so(text) else None

        return Awaited(
            self._running, f"until {name}", lambda: until(look, lambda: variables.wait(name))
        )


@dataclass(frozen=True, slots=True)
class Program:
    """An async function of a ``Guide``, for example ``async def p(g): await g.fixed("Hello")``.

    Each generation gets its own run and its own variables; ``variables`` are their texts at the
    start.
    """

    function: ProgramFunction
    variables: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise OptionError(
                "program", f"expected an async function of a guide, got {self.function!r}"
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
