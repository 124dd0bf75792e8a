"""llguidance for one vocabulary: compiled grammars, and the engine's errors in words.

Compiled grammars are kept and copied: a copy takes microseconds, compiling takes milliseconds or
more. Copies share the automaton, which grows as masks are computed, so a second row with the same
schema starts warm. Masks are computed one after another: one takes 5 to 30 µs, and handing it to a
thread about as much.

A shared automaton only grows, and has a limit. At that limit, every copy's mask fails, and the
grammar is compiled again. The limits of the parser are different: a copy that meets one has its own
error, and would meet it again.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from functools import lru_cache
from weakref import ref

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from ..errors import GrammarError, PromptError
from ..recent import Recent
from ..tokens.vocabulary import AnyTokenizer, Token, Vocabulary
from .protocol import Int32Words, word_count
from .schema.fitting import Check

_KEPT = 32  # compiled grammars for one vocabulary
_TEXTS = 4096  # short forced texts whose tokens are remembered
_SHORT = 256  # characters of a short text, at most
_LONG_TEXTS = 16  # longer texts whose tokens are remembered; they may be as long as a request
_RUN = 1024  # forced tokens to look at; a grammar may force endless text
_ITEMS = 10_000  # the parser's items in a row; an object takes four for each optional property
_FUEL = 100_000  # of compiling; with ten times as much, a refusal takes 2 s and 260 MB
_LIMITS = LLParserLimits(verbose_errors=False, max_items_in_row=_ITEMS, initial_lexer_fuel=_FUEL)
_INNER = "mlxgen_inner"


@dataclass(frozen=True, slots=True)
class Grammar:
    """A grammar as llguidance takes it, its name in messages, and how its texts are checked.

    - ``skips_space``: whether its texts may begin with an insignificant space.
    - ``named``: the tokens that it names by their ids, without special ones.
    """

    text: str
    name: str
    skips_space: bool = False
    check: Check | None = None
    named: frozenset[Token] = frozenset()

    @classmethod
    def of_lark(cls, lark: str, name: str, check: Check | None = None) -> Grammar:
        return cls(json.dumps({"grammars": [{"lark_grammar": lark}]}), name, check=check)

    def after(self, lark: str, *, skips_space: bool = False) -> Grammar:
        """This grammar, preceded by what the Lark expression ``lark`` matches."""
        inner = json.loads(self.text)["grammars"]
        outer = {"lark_grammar": f"start: {lark} @{_INNER}"}
        inner[0] = {**inner[0], "name": _INNER}
        text = json.dumps({"grammars": [outer, *inner]})
        return replace(self, text=text, skips_space=skips_space)


class GrammarEngine:
    """llguidance for one vocabulary, and the grammars compiled for it."""

    def __init__(self, vocabulary: Vocabulary, vocab_size: int) -> None:
        self.vocabulary = vocabulary
        eos = sorted(vocabulary.eos)
        size = max(vocab_size, vocabulary.size, *(token + 1 for token in eos), 0)
        if not eos:  # llguidance needs one: an id that no token has
            eos = [size]
            size += 1
        self.words = word_count(size)
        # llguidance ignores this size for tokenizers of this kind, so the pieces are padded.
        tokens = _Tokens(vocabulary, size, eos[0])
        self.tokenizer = LLTokenizer(tokens, n_vocab=size, eos_token=eos)  # type: ignore[arg-type]
        assert self.tokenizer.vocab_size == size
        # Or why one is refused, as finding that out takes as long as compiling. Only the text:
        # an error's traceback holds the matcher that failed, which can have 100 MB.
        self._kept: Recent[str, LLMatcher | str] = Recent(_KEPT)

    @classmethod
    def of(cls, tokenizer: AnyTokenizer, vocab_size: int) -> GrammarEngine:
        """The engine of a tokenizer, made once for each width of the logits."""
        vocabulary = Vocabulary.of(tokenizer)
        size = max(vocab_size, vocabulary.size)
        return vocabulary.derived(("llguidance", size), lambda: cls(vocabulary, size))

    def compiled(self, grammar: Grammar, spent: LLMatcher | None = None) -> LLMatcher:
        """A matcher at the start of the grammar, to be copied; never the ``spent`` one, whose
        automaton has met its limit. GrammarError if the grammar cannot be met."""
        kept = self._kept.get(grammar.text, lambda: self._compile(grammar))
        if spent is not None and kept is spent:
            self._kept.forget(grammar.text)
            kept = self._kept.get(grammar.text, lambda: self._compile(grammar))
        if isinstance(kept, str):
            raise GrammarError(kept)
        return kept

    def _compile(self, grammar: Grammar) -> LLMatcher | str:
        try:
            return self._tried(grammar)
        except GrammarError as error:
            return str(error)
        except BaseException as error:
            if type(error).__name__ != "PanicException":  # not an Exception
                raise
            return f"{grammar.name}: {_BROKEN}"

    def _tried(self, grammar: Grammar) -> LLMatcher:
        matcher = LLMatcher(self.tokenizer, grammar.text, log_level=0, limits=_LIMITS)
        self._check(matcher, grammar)
        trial = matcher.deep_copy()
        run = trial.compute_ff_tokens()
        if run:  # a grammar may begin with text that leads to a dead end
            trial.try_consume_tokens(run[:_RUN])
            self._check(trial, grammar)
        return matcher

    def _check(self, matcher: LLMatcher, grammar: Grammar) -> None:
        """GrammarError if no text is possible."""
        if not matcher.is_error():
            mask_of(matcher, self.words)
        if matcher.is_error():
            reason = "no text satisfies it" if is_dead_end(matcher) else reason_of(matcher)
            raise GrammarError(f"{grammar.name}: {reason}")


def mask_of(matcher: LLMatcher, words: int) -> Int32Words:
    """The row of tokens that a matcher allows; valid if the matcher has no error afterwards."""
    row = np.empty(words, dtype=np.int32)
    matcher.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)
    return row


class _Tokens:
    """A vocabulary in the form that llguidance wants of a tokenizer.

    llguidance holds it where Python's garbage collector cannot see it, and the vocabulary holds the
    engine: so its reference to the vocabulary is weak, or neither would ever be freed.
    """

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary, size: int, eos: Token) -> None:
        self.eos_token_id = eos
        self.special_token_ids = sorted(vocabulary.special)
        self.tokens = [*vocabulary.pieces, *[b""] * (size - vocabulary.size)]
        of = ref(vocabulary)

        def spelled(text: str) -> list[Token]:
            whole = of()
            assert whole is not None, "whoever follows a grammar holds its vocabulary"
            try:
                return whole.continue_with(text.encode())
            except PromptError:
                return []

        self._short, self._long = lru_cache(_TEXTS)(spelled), lru_cache(_LONG_TEXTS)(spelled)

    def __call__(self, text: str) -> list[Token]:
        """The tokens of a text in the middle of a sequence.

        They are never special: llguidance would force special tokens if a grammar has their
        text as a literal, and then refuse them.
        """
        return list(self._short(text) if len(text) <= _SHORT else self._long(text))


# ---- reasons -----------------------------------------------------------------------------------

_TOO_MANY = ("too many expressions", "too big", "too large")
_TOO_LARGE = (
    "the grammar engine cannot follow it: it is too large; use fewer or shorter repetitions, "
    "alternatives and rules"
)
_BROKEN = "the grammar engine fails on it by an error of its own; write it in another way"
_ITEMS_MET = re.compile(r"row has (\d+) items; max is (\d+)")
_PLACE = re.compile(r"^(?:at )?(\d+)\((\d+)\): ")
_PICTURE = re.compile(r"\n +\d+ \|.*\Z", re.DOTALL)  # lines of the grammar
_EXPRESSION = re.compile(r"regex parse error:\n(?P<shown>.*)\nerror: (?P<what>[^\n]*)", re.DOTALL)


def has_met_shared_limit(matcher: LLMatcher) -> bool:
    """Whether the error is that the shared automaton has reached its limit."""
    return matcher.get_error().startswith("lexer error")


def is_dead_end(matcher: LLMatcher) -> bool:
    """Whether the error is only that no token may follow and the text may not end."""
    return matcher.get_error().startswith("NoExtension")


def shortened(name: str) -> str:
    """The name of a filter, such as ``Regex('a*')``, in at most 80 characters."""
    return name if len(name) <= 80 else f"{name[:76]}...)"


def _beginning(text: str, most: int) -> str:
    """A text in at most so many characters."""
    return text if len(text) <= most else f"{text[: most - 3]}..."


def reason_of(matcher: LLMatcher) -> str:
    """The engine's reason for an error in one paragraph, for the author of the grammar.

    The engine reports a place as ``3(14)`` with a picture of the line, and an error in a regular
    expression with a picture of the expression. The place of the latter is left out, because the
    user has not written the grammar around a ``Regex``. Other reasons stay as they are, without the
    engine's dump of its states.
    """
    reason = matcher.get_error()
    for mark in ("<non-verbose/>", "<state>", "<backtrace>"):
        reason = reason.partition(mark)[0]
    if any(sign in reason for sign in _TOO_MANY):
        return _TOO_LARGE
    if "panic" in reason:
        return _TOO_LARGE if ".len() <" in reason else _BROKEN
    met = _ITEMS_MET.search(reason)
    if met:
        return (
            f"too much may come next in one place ({met[1]} items of the parser; at most {met[2]} "
            "fit); use fewer alternatives or optional properties there"
        )
    reason = _PICTURE.sub("", reason)
    expression = _EXPRESSION.search(reason)
    if expression is not None:
        return _wrong_in(expression)
    place = _PLACE.match(reason)
    if place is not None:
        reason = f"line {place[1]}, column {place[2]}: {reason[place.end() :]}"
    return _beginning(reason.strip(), 500)


def _wrong_in(match: re.Match[str]) -> str:
    """What is wrong with a regular expression, and where."""
    lines = match["shown"].split("\n")
    if len(lines) == 2 and "^" in lines[1]:  # the expression, and marks under the wrong part
        first, last = lines[1].index("^"), lines[1].rindex("^")
        whole, wrong = _beginning(lines[0][4:], 80), _beginning(lines[0][first : last + 1], 80)
        here = f"{wrong!r} at character {first - 3}" if wrong else "at its end"
        return f"the regular expression {whole} is not valid: {match['what']} ({here})"
    return f"the regular expression is not valid: {match['what']}"
