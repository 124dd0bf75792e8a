"""The options of one generation, checked once.

Owns the value that the engine reads. The meaning, range and default of each option is in
``options.table``. Must never know a model: what depends on one (token ids in range, room in the
context) is checked where the two meet. Invariant: an ``Options`` that exists is valid.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from ..errors import OptionError
from ..filters import Filter, Specification
from ..options.table import (
    OPTIONS,
    ChangingOptions,
    Pattern,
    SamplingOptions,
    check_together,
    checked,
)
from ..sampling import Hook, SamplingSettings
from ..tokens import Token, Vocabulary

_BEFORE = 16  # tokens of the prompt before a prediction

AnyFilter: TypeAlias = Specification | Filter


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of ``GenerationOptions``, checked, with those for sampling in one value."""

    sampling: SamplingSettings
    seed: int | None
    max_tokens: int | None
    min_tokens: int
    ignore_eos: bool
    stop: tuple[str, ...]
    stop_tokens: tuple[tuple[Token, ...], ...]
    stop_in_reasoning: bool
    thinking_budget: int | None
    banned: tuple[Pattern, ...]
    ban_strength: float
    heal: bool
    filters: tuple[AnyFilter, ...]
    hooks: tuple[Hook, ...]
    max_resample: int
    hold_tokens: int
    allow_retract: bool
    close_json: bool
    loops: str
    prefix: tuple[Token, ...]
    top_logprobs: int | None
    top_candidates: int
    prompt_logprobs: int | None
    draft: Any
    num_draft_tokens: int | None
    prediction: Sequence[Any]  # a string or token ids; in a request, token ids

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Options:
        """Check keyword options; raises ``OptionError`` for the first wrong one."""
        values = checked(given)
        check_together(values)
        sampling = {name: values.pop(name) for name in SamplingOptions.__annotations__}
        return cls(sampling=SamplingSettings(**sampling), **values)

    def changed(self, given: Mapping[str, Any]) -> Options:
        """The same options with other sampling, filters and stops; ``OptionError`` for any other
        option, which holds for a whole text."""
        for name in given:
            if name in OPTIONS and name not in ChangingOptions.__annotations__:
                raise OptionError(
                    name, "cannot change within a text, as sampling, filters and stops can"
                )
        values = checked(given)
        new = {name: values[name] for name in given}
        sampling = {n: new.pop(n) for n in list(new) if n in SamplingOptions.__annotations__}
        return replace(self, sampling=replace(self.sampling, **sampling), **new)

    def some_seed(self) -> int:
        """The seed of a generation with these options: the given one, or a random one."""
        return self.seed if self.seed is not None else secrets.randbits(63)

    def predicting(self, prompt: Sequence[Token], vocabulary: Vocabulary) -> Options:
        """The same options with the tokens of ``prediction``, after the prompt's last ones, by
        which a drafter finds where they begin."""
        given = self.prediction
        text = vocabulary.encode(given, special=False) if isinstance(given, str) else given
        return replace(self, prediction=(*prompt[-_BEFORE:], *text))

    def fork(self) -> Options:
        """The options of a fork, with copies of the hooks that have ``fork``."""
        if not any(hasattr(hook, "fork") for hook in self.hooks):
            return self
        hooks = (hook.fork() if hasattr(hook, "fork") else hook for hook in self.hooks)
        return replace(self, hooks=tuple(hooks))

    def check_vocabulary(self, size: int) -> None:
        """Raise ``OptionError`` for a token id that a vocabulary of ``size`` does not have."""
        for name, tokens in (
            ("stop_tokens", [t for sequence in self.stop_tokens for t in sequence]),
            ("prefix", self.prefix),
            ("prediction", () if isinstance(self.prediction, str) else self.prediction),
            ("logit_bias", self.sampling.logit_bias),
        ):
            for token in tokens:
                if not 0 <= token < size:
                    raise OptionError(name, f"expected token ids from 0 to {size - 1}, got {token}")
