"""The options of one generation, validated once.

Owns the names, defaults, ranges and types of everything that ``stream``, ``generate``
and ``Session`` accept. Must never know a model: what depends on one (token ids in
range, room in the context) is checked where the two meet. Invariant: an ``Options``
that exists is valid; whatever is wrong raised ``OptionError`` naming the field.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeAlias, TypedDict

from ..errors import OptionError
from ..filters import Filter, Specification
from ..sampling import CANDIDATES, Hook, SamplingSettings
from ..tokens import Token

AnyFilter: TypeAlias = Specification | Filter
StopTokens: TypeAlias = Sequence[Token | Sequence[Token]]
Pattern: TypeAlias = str | re.Pattern[str]


class GenerationOptions(TypedDict, total=False):
    """The keyword-only options of ``stream``, ``generate`` and ``Session``, for type checkers."""

    max_tokens: int | None
    min_tokens: int
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    xtc_probability: float
    xtc_threshold: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    repetition_context_size: int
    logit_bias: Mapping[Token, float]
    seed: int | None
    ignore_eos: bool
    stop: str | Sequence[str]
    stop_tokens: StopTokens
    banned: Pattern | Sequence[Pattern]
    heal: bool
    filters: AnyFilter | Sequence[AnyFilter]
    hooks: Hook | Sequence[Hook]
    max_resample: int
    hold_tokens: int
    allow_retract: bool
    close_json: bool
    prefix: Sequence[Token]
    top_logprobs: int | None
    top_candidates: int
    prompt_logprobs: int | None
    draft: Any
    num_draft_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Validated options; ``None`` for any of them means its default.

    - ``max_tokens``: tokens to generate at most, ``prefix`` included; ``None``: as many as
      the context holds. Default 256.
    - ``min_tokens``: before so many tokens no end token and no single-token stop is drawn.
    - ``sampling``: temperature and the rest, see ``SamplingSettings``.
    - ``seed``: any integer; ``None`` draws one.
    - ``ignore_eos``: end tokens do not end the generation; they give no text.
    - ``stop``, ``stop_tokens``: strings and token sequences that end it, never delivered.
    - ``banned``: strings or compiled expressions that never appear in the text. A search that
      takes a second ends in ``OptionError``, and a text that runs from one ban into the next in
      ``DeadEndError``.
    - ``heal``: take back the prompt's last tokens where the text may join them.
    - ``filters``: what the generated text must be; several are intersected. A specification
      (``JsonSchema(schema)``) may be used again and again, a running filter once.
    - ``hooks``: called with a ``PostSamplingResult`` for every accepted token. A fork copies
      those that have a ``fork()`` and shares the others.
    - ``max_resample``: how often one position is drawn again for a hook, by ``resample`` or by a
      ``rewind`` that leads there (0 to 10,000); then the last draw stands, and the chunk of
      the token whose hook asked says ``exhausted``.
    - ``hold_tokens``: how many of the newest tokens are not delivered yet.
    - ``allow_retract``: deliver at once, and say in ``Chunk.retract`` what to delete.
    - ``close_json``: end validly before ``max_tokens`` cuts a filtered text off.
    - ``prefix``: tokens taken as already generated.
    - ``top_logprobs``: 0 to 20 alternatives with each token's log-probability;
      ``None`` reports none and computes none. They are the model's own, before anything here
      was done to them (``Chunk.top``).
    - ``top_candidates``: so many (0 to 128) of the tokens that each one was drawn from, after
      filters and all the rest, with their probabilities (``Chunk.candidates``).
    - ``prompt_logprobs``: the same for the tokens of the prompt, in the first chunk's ``prompt``;
      then all of the prompt is run, and nothing of it taken from the prefix cache.
    - ``draft``: a smaller ``LanguageModel`` of the same tokenizer that proposes tokens, or
      ``"ngram"``: they are found in the text so far. The text is the same, token for token,
      only sooner. By default what the model was loaded with; ``"off"``: none.
    - ``num_draft_tokens``: the most that are proposed at a time (1 to 64); fewer, down to
      none, where they are not accepted. Default 4 of a model, 8 of ``"ngram"``.
    """

    max_tokens: int | None = 256
    min_tokens: int = 0
    sampling: SamplingSettings = field(default_factory=SamplingSettings)
    seed: int | None = None
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()
    stop_tokens: tuple[tuple[Token, ...], ...] = ()
    banned: tuple[Pattern, ...] = ()
    heal: bool = False
    filters: tuple[AnyFilter, ...] = ()
    hooks: tuple[Hook, ...] = ()
    max_resample: int = 16
    hold_tokens: int = 0
    allow_retract: bool = False
    close_json: bool = False
    prefix: tuple[Token, ...] = ()
    top_logprobs: int | None = None
    top_candidates: int = 0
    prompt_logprobs: int | None = None
    draft: Any = None
    num_draft_tokens: int | None = None

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Options:
        """Validate keyword options; raises ``OptionError`` for the first that is wrong."""
        options = cls.each_by_itself(given)
        options._check_together()
        return options

    @classmethod
    def each_by_itself(cls, given: Mapping[str, Any]) -> Options:
        """Validate options that others will be added to: whether they go together is not asked."""
        known = GenerationOptions.__annotations__
        for name in given:
            if name not in known:
                close = difflib.get_close_matches(name, known, 1)
                hint = f", did you mean {close[0]}?" if close else f"; known: {', '.join(known)}"
                raise OptionError(name, f"there is no such option{hint}")
        values = {name: value for name, value in given.items() if value is not None}
        sampling = {name: values.pop(name) for name in _SAMPLING if name in values}
        checked = {name: _CHECKS[name](name, value) for name, value in values.items()}
        if "max_tokens" in given and given["max_tokens"] is None:
            checked["max_tokens"] = None
        return cls(sampling=SamplingSettings(**sampling), **checked)

    def _check_together(self) -> None:
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise OptionError(
                "min_tokens", f"{self.min_tokens} is more than max_tokens={self.max_tokens}"
            )
        if self.max_tokens is not None and len(self.prefix) >= self.max_tokens:
            raise OptionError(
                "prefix",
                f"its {len(self.prefix)} tokens count as generated and leave nothing of "
                f"max_tokens={self.max_tokens}; raise max_tokens",
            )
        if self.close_json and not self.filters:
            raise OptionError("close_json", "needs a filter, say filters=[JsonSchema(schema)]")

    def fork(self) -> Options:
        """The options of a fork: with copies of the hooks that can be copied."""
        if not any(hasattr(hook, "fork") for hook in self.hooks):
            return self
        hooks = (hook.fork() if hasattr(hook, "fork") else hook for hook in self.hooks)
        return replace(self, hooks=tuple(hooks))

    def check_vocabulary(self, size: int) -> None:
        """Raise ``OptionError`` for a token id that a vocabulary of ``size`` does not have."""
        for name, tokens in (
            ("stop_tokens", [t for sequence in self.stop_tokens for t in sequence]),
            ("prefix", list(self.prefix)),
        ):
            for token in tokens:
                if not 0 <= token < size:
                    raise OptionError(name, f"token {token} is not in 0 to {size - 1}")
        self.sampling.check_vocabulary(size)


_SAMPLING = frozenset(f.name for f in fields(SamplingSettings))


def integer(low: int, high: int | None) -> Callable[[str, Any], int]:
    """A check for an integer from ``low`` to ``high``."""

    def check(name: str, value: Any) -> int:
        if isinstance(value, bool) or not hasattr(value, "__index__"):
            raise OptionError(name, f"{value!r} is not an integer")
        number = int(value.__index__())
        if number < low or (high is not None and number > high):
            limit = f"{low} to {high}" if high is not None else f"{low} or more"
            raise OptionError(name, f"{number} is out of range, give {limit}")
        return number

    return check


def _any_integer(name: str, value: Any) -> int:
    if isinstance(value, float) and math.isfinite(value) and value == int(value):
        return int(value)
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise OptionError(name, f"{value!r} is not an integer")
    return int(value.__index__())


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise OptionError(name, f"{value!r} is neither True nor False")
    return value


def _token(name: str, value: Any) -> Token:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise OptionError(name, f"{value!r} is not a token id")
    return int(value.__index__())


def _tokens(name: str, value: Any) -> tuple[Token, ...]:
    if isinstance(value, (str, bytes)) or not hasattr(value, "__iter__"):
        raise OptionError(name, f"{value!r} is not a list of token ids")
    return tuple(_token(name, item) for item in value)


def _strings(name: str, value: Any) -> tuple[str, ...]:
    items = (value,) if isinstance(value, str) else value
    if not isinstance(items, Collection) or isinstance(items, (bytes, Mapping)):
        raise OptionError(name, f"{value!r} is neither a string nor a list of strings")
    for item in items:
        if not isinstance(item, str):
            raise OptionError(name, f"{item!r} is not a string")
        if not item:
            raise OptionError(name, "an empty string would match everywhere")
    return tuple(items)


def _stop_tokens(name: str, value: Any) -> tuple[tuple[Token, ...], ...]:
    if isinstance(value, (str, bytes)) or not hasattr(value, "__iter__"):
        raise OptionError(name, f"{value!r} is not a list of token ids, or of lists of them")
    sequences = []
    for item in value:
        single = hasattr(item, "__index__") and not isinstance(item, bool)
        sequence = (_token(name, item),) if single else _tokens(name, item)
        if not sequence:
            raise OptionError(name, "an empty token sequence would match everywhere")
        sequences.append(sequence)
    return tuple(sequences)


def _banned(name: str, value: Any) -> tuple[Pattern, ...]:
    items = (value,) if isinstance(value, (str, re.Pattern)) else value
    if not isinstance(items, Collection) or isinstance(items, (bytes, Mapping)):
        raise OptionError(name, f"{value!r} is neither a string nor a list of strings")
    for item in items:
        if not isinstance(item, (str, re.Pattern)):
            raise OptionError(name, f"{item!r} is neither a string nor a compiled expression")
        if not item:
            raise OptionError(name, "an empty string would match everywhere")
    return tuple(items)


def _filters(name: str, value: Any) -> tuple[AnyFilter, ...]:
    items = value if isinstance(value, (list, tuple)) else (value,)
    for item in items:
        if not hasattr(item, "bind") and not (hasattr(item, "fill") and hasattr(item, "advance")):
            raise OptionError(
                name,
                f"{item!r} is no filter: it has neither bind() nor fill() and advance(); "
                "wrap a schema as JsonSchema(schema), a pattern as Regex(pattern)",
            )
    return tuple(items)


def _hooks(name: str, value: Any) -> tuple[Hook, ...]:
    items = (value,) if callable(value) else value
    if not isinstance(items, (list, tuple)) or not all(callable(item) for item in items):
        raise OptionError(name, f"{value!r} is neither a callable nor a list of callables")
    return tuple(items)


def _draft(name: str, value: Any) -> Any:
    if value in ("ngram", "off") or (hasattr(value, "model") and hasattr(value, "vocabulary")):
        return value
    raise OptionError(name, f'{value!r} is neither a LanguageModel, "ngram" nor "off"')


_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "max_tokens": integer(1, None),
    "min_tokens": integer(0, None),
    "seed": _any_integer,
    "ignore_eos": _flag,
    "stop": _strings,
    "stop_tokens": _stop_tokens,
    "banned": _banned,
    "heal": _flag,
    "filters": _filters,
    "hooks": _hooks,
    "max_resample": integer(0, 10_000),
    "hold_tokens": integer(0, 1_000_000),
    "allow_retract": _flag,
    "close_json": _flag,
    "prefix": _tokens,
    "top_logprobs": integer(0, 20),
    "top_candidates": integer(0, CANDIDATES),
    "prompt_logprobs": integer(0, 20),
    "draft": _draft,
    "num_draft_tokens": integer(1, 64),
}
