"""What every request for text may say, whichever API it comes by: the model's name, and sampling.

Invariant: the fields are called as the engine's options are, and so mean the same in all APIs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator

from ..options.table import OPTIONS, understood
from .errors import RequestError
from .fields import (
    Body,
    Breakers,
    Count,
    DryLength,
    Int,
    Limit,
    ModelName,
    TopK,
    about,
    named,
    option,
)

_NEVER = -100.0  # a bias that leaves no chance


def _pairs(given: Any) -> Any:
    """llama.cpp's way to say it: pairs of a token id and a bias, or false for never."""
    if (
        isinstance(given, list)
        and given
        and all(isinstance(each, list) and len(each) == 2 for each in given)
    ):
        given = {str(token): bias for token, bias in given}
    if isinstance(given, dict):
        return {token: _NEVER if bias is False else bias for token, bias in given.items()}
    return given


class TextRequest(Body):
    """What requests for text have in common."""

    model: ModelName | None = named()
    stream: bool | None = about("send events as the text grows")
    return_progress: bool | None = about(
        "begin a stream with prompt_progress while the prompt is run"
    )
    seed: Int | None = option("seed")
    min_tokens: Count | None = option("min_tokens")
    temperature: float | None = option("temperature")
    top_p: float | None = option("top_p", low=0)
    top_k: TopK | None = option("top_k")
    min_p: float | None = option("min_p")
    xtc_probability: float | None = option("xtc_probability")
    xtc_threshold: float | None = option("xtc_threshold")
    repetition_penalty: float | None = option("repetition_penalty")
    presence_penalty: float | None = option("presence_penalty")
    frequency_penalty: float | None = option("frequency_penalty")
    repetition_context_size: Count | None = option("repetition_context_size")
    dry_multiplier: float | None = option("dry_multiplier")
    dry_base: float | None = option("dry_base")
    dry_allowed_length: DryLength | None = option("dry_allowed_length")
    dry_penalty_last_n: Limit | None = option("dry_penalty_last_n")
    dry_sequence_breakers: Breakers | None = option("dry_sequence_breakers")
    logit_bias: Annotated[dict[str, float], BeforeValidator(_pairs)] | None = option("logit_bias")
    ignore_eos: bool | None = option("ignore_eos")
    stop_in_reasoning: bool | None = option("stop_in_reasoning")
    thinking_budget: Count | None = option("thinking_budget")


def options_of(request: TextRequest) -> dict[str, Any]:
    """The options that a request gives by their own names; raises ``RequestError``."""
    asked = {name: getattr(request, name, None) for name in OPTIONS}
    given = {name: understood(name, value) for name, value in asked.items() if value is not None}
    if request.logit_bias is not None:
        given["logit_bias"] = _biases(request.logit_bias)
    return given


def _biases(given: Mapping[str, float]) -> dict[int, float]:
    biases = {}
    for text, bias in given.items():
        if not text.isdecimal() or not text.isascii() or len(text) > 12:
            raise RequestError.at("logit_bias", f"expected token ids as keys, got {text[:40]!r}")
        biases[int(text)] = bias
    return biases
