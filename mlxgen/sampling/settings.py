"""How one sequence is sampled.

Owns ``SamplingSettings``, its ranges and its checks. Must never know arrays, models or
what the other rows of a batch want. Invariant: settings that exist are valid, and never
change.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from numbers import Real
from typing import TYPE_CHECKING, Any

from ..errors import OptionError

if TYPE_CHECKING:
    from ..tokens import Token

MAX_TEMPERATURE = 100.0
MAX_LOGIT_BIAS = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingSettings:
    """The options that turn logits into a token, in the order in which they work:

    ``logit_bias``: what is added to the logits of these tokens (-1e9 to 1e9).
    ``repetition_penalty``: logits of tokens in prompt or output are divided by it where
        they are positive and multiplied where they are negative (more than 0; 1.0: off).
    ``presence_penalty``, ``frequency_penalty``: subtracted from the logit of each token
        of the output, once or as often as it occurs there (-2 to 2; 0.0: off).
    ``repetition_context_size``: these penalties look at so many of the newest tokens of prompt and
        output together (0: all of them).
    ``top_p``: keep the likeliest tokens that together reach this probability (over 0, to
        1; 1.0: off).
    ``min_p``: keep tokens at least this fraction as likely as the likeliest (0 to 1; 0.0: off).
    ``xtc_probability``: the chance (0 to 1; 0.0: off) that a draw leaves out every token
        more likely than ``xtc_threshold`` (0 to 0.5) except the least likely of these.
    ``top_k``: keep the k likeliest of what is left (0, or the vocabulary's size or more: off).
    ``temperature``: flattens (over 1) or sharpens (under 1) what is kept; 0.0 takes the
        likeliest token, whatever the truncation (0 to 100).

    Raises ``OptionError`` for a value of the wrong type or out of its range.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_context_size: int = 0
    logit_bias: Mapping[Token, float] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        for name, (low, high, text) in _RANGES.items():
            value = _number(name, getattr(self, name), text)
            if not low <= value <= high:
                raise OptionError(name, f"{value} is out of range, give {text}")
            object.__setattr__(self, name, value)
        for name, unlimited in (("top_k", "off"), ("repetition_context_size", "all")):
            object.__setattr__(self, name, _count(name, getattr(self, name), unlimited))
        object.__setattr__(self, "logit_bias", _logit_bias(self.logit_bias))

    @property
    def penalises(self) -> bool:
        """Whether the tokens so far matter, so that a draw needs their counts."""
        return (
            self.repetition_penalty != 1
            or self.presence_penalty != 0
            or self.frequency_penalty != 0
        )

    def check_vocabulary(self, vocab_size: int) -> None:
        """Raise ``OptionError`` for a biased token that is not in the vocabulary."""
        for token in self.logit_bias:
            if token >= vocab_size:
                raise OptionError(
                    "logit_bias", f"token {token} is not in the vocabulary, 0 to {vocab_size - 1}"
                )


_ABOVE_ZERO = math.ulp(0.0)
_MOST = 1e6
_LEAST = 1e-9  # a logit divided by it is finite

_RANGES: dict[str, tuple[float, float, str]] = {
    "temperature": (0.0, MAX_TEMPERATURE, f"0 to {MAX_TEMPERATURE:g}"),
    "top_p": (_ABOVE_ZERO, 1.0, "more than 0, up to 1 (1 turns it off)"),
    "min_p": (0.0, 1.0, "0 to 1"),
    "xtc_probability": (0.0, 1.0, "0 to 1"),
    "xtc_threshold": (0.0, 0.5, "0 to 0.5"),
    "repetition_penalty": (_LEAST, _MOST, f"{_LEAST:g} to {_MOST:g} (1 turns it off)"),
    "presence_penalty": (-2.0, 2.0, "-2 to 2"),
    "frequency_penalty": (-2.0, 2.0, "-2 to 2"),
}


def _number(name: str, value: Any, allowed: str) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise OptionError(name, f"{value!r} is not a number, give {allowed}")
    try:
        number = float(value)
    except OverflowError:
        raise OptionError(name, f"{value} is out of range, give {allowed}") from None
    if not math.isfinite(number):
        raise OptionError(name, f"{value} is not a finite number, give {allowed}")
    return number


def _count(name: str, value: Any, unlimited: str) -> int:
    allowed = f"0 ({unlimited}) or more"
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise OptionError(name, f"{value!r} is not an integer, give {allowed}")
    count = int(value.__index__())
    if count < 0:
        raise OptionError(name, f"{count} is out of range, give {allowed}")
    return count


def _logit_bias(value: Any) -> dict[Token, float]:
    """A copy of the caller's mapping, which may change later."""
    if not isinstance(value, Mapping):
        raise OptionError("logit_bias", f"{value!r} does not map token ids to numbers")
    allowed = f"{-MAX_LOGIT_BIAS:g} to {MAX_LOGIT_BIAS:g}"
    biases: dict[Token, float] = {}
    for token, bias in value.items():
        if isinstance(token, bool) or not hasattr(token, "__index__") or token < 0:
            raise OptionError("logit_bias", f"{token!r} is not a token id, give an integer >= 0")
        number = _number("logit_bias", bias, allowed)
        if abs(number) > MAX_LOGIT_BIAS:
            raise OptionError(
                "logit_bias", f"{number} for token {token} is out of range, give {allowed}"
            )
        biases[int(token)] = number
    return biases
