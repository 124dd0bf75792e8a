"""Marks of thinking and headers of the model families that mlx-lm says nothing about."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from .splitter import Marks

_THINKING = (
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),  # Magistral and later Mistral models
    ("<|START_THINKING|>", "<|END_THINKING|>"),  # Command R7B, Command A
    ("<seed:think>", "</seed:think>"),
    ("<mm:think>", "</mm:think>"),  # MiniMax M3
    ("<|inner_prefix|>", "<|inner_suffix|>"),  # Apertus
    ("Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]"),  # Apriel
)
_RESPONSE = (
    ("<|START_RESPONSE|>", "<|END_RESPONSE|>"),
    ("<response>", "</response>"),  # Granite 3
    ("<answer>", "</answer>"),  # Hunyuan, on lines of their own
)
_TOKENS = (  # that mean nothing inside an answer
    "<|python_end|>",  # Llama 4, after its calls
    *("<|CHATBOT_TOKEN|>", "<|END_OF_TURN_TOKEN|>"),  # Command R
    *("<|START_TEXT|>", "<|END_TEXT|>"),  # Command A
    *("<|channel>", "<channel|>"),  # Gemma 4, around no channel
)
_TEXTS = ("[END FINAL RESPONSE]",)
_ENDS = (
    *(("<|end|>", "header"), ("<|call|>", "header"), ("<|start|>", "header")),
    ("<|return|>", "header"),
    *(("<|channel|>analysis", "thoughts"), ("<|channel|>", "header")),
)
_HEADER = r"(?:\s*<\|start\|>)?(?:\s*assistant\b)?(?:\s*to=[^\s<]*)?(?:\s*<\|message\|>\s*)?"
HARMONY = Marks(  # gpt-oss: channels, of which a recipient makes a message to a tool
    transitions={
        "header": [
            ("to=", "tool"),
            ("analysis<|message|>", "reasoning"),
            ("<|message|>", "normal"),
            *_ENDS,
        ],
        "thoughts": [("to=", "tool"), ("<|message|>", "reasoning"), *_ENDS],
        "reasoning": _ENDS,
        "normal": _ENDS,
    },
    initial="header",
    header=r"(?:\s*assistant\b)?(?:\s*to=[^\s<{]*)?(?:\s*(?:analysis|commentary|final)\b)?"
    r"(?:(?:\s*to=[^\s<{]*|\s*<\|constrain\|>)+(?:\s*\w+)?)?(?:(?<=\w|>)\s+)?",
    answer=("<|channel|>final", "<|message|>"),
)


def marks_of(tokenizer: Any, template: str, tokens: Collection[str]) -> Marks:
    """What mlx-lm says of a tokenizer's model, or else its templates and its added tokens."""
    if {"<|channel|>", "<|message|>", "<|start|>"}.issubset(tokens):
        return HARMONY
    start, end = tokenizer.think_start or None, tokenizer.think_end or None
    if start is None:
        known = [pair for pair in _THINKING if all(_is_in(m, template, tokens) for m in pair)]
        start, end = known[0] if known else (None, None)
    markers = tuple(tokenizer.structural_markers)
    markers += tuple(mark for mark in _TOKENS if mark in tokens and mark not in (start, end))
    markers += tuple(mark for mark in _TEXTS if mark in template)
    for pair in _RESPONSE:
        is_there = all(_is_in(mark, template, tokens) for mark in pair)
        is_hunyuan = "<tool_calls>" in template and pair == ("<answer>", "</answer>")
        if start is not None and (is_there or is_hunyuan):  # its template does not show them
            markers += (*pair, f"\n{pair[1]}")
    initial, transitions = tokenizer.response_initial_state, dict(tokenizer.response_transitions)
    if initial is not None:  # a header may have no message
        ends = [lead for leads in transitions.values() for lead in leads if lead[1] == initial]
        transitions[initial] = [*transitions.get(initial, ()), *ends]
    return Marks(
        think_start=start,
        think_end=end,
        markers=markers,
        transitions=transitions,
        initial=initial,
        header=_HEADER if initial is not None else "",
    )


def _is_in(mark: str, template: str, tokens: Collection[str]) -> bool:
    return mark in template or mark in tokens
