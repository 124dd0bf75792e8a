"""The marks between the parts of a model's text: which there are, where the next one is, and those
of model families that mlx-lm does not describe."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import regex

from .calls.reader import ToolReader
from .calls.styles import any_of

Kind: TypeAlias = Literal["content", "reasoning", "call", "mark"]
Thinking: TypeAlias = Literal["open", "possible", "closed"]

KINDS: Mapping[str, Kind] = {"reasoning": "reasoning", "content": "content"}
"""The parts of a text that are shown."""
_NAMES = {"normal": "content", "reasoning": "reasoning", "tool": "call"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """The marks that a model puts between the parts of its text.

    ``markers`` are dropped from content. ``transitions`` and ``initial`` are those of mlx-lm's
    ``TokenizerWrapper`` for models that write a header before each part; ``header`` is the pattern
    of a header's words, if known. ``answer`` has the marks, in order, that precede the last part
    of an answer, if known.
    """

    think_start: str | None = None
    think_end: str | None = None
    markers: tuple[str, ...] = ()
    transitions: Mapping[str, Sequence[tuple[str, str]]] = field(default_factory=dict)
    initial: str | None = None
    header: str = ""
    answer: tuple[str, ...] = ()

    def edges(self, tool_starts: Sequence[str] | None) -> dict[str, dict[str, str]]:
        """The marks that end each state, and the states that they lead to; None: to no call."""
        edges: dict[str, dict[str, str]] = {"content": {}, "reasoning": {}}
        if self.think_end:
            edges["reasoning"][self.think_end] = "content"
        for start in tool_starts or ():
            for known in edges.values():
                known.setdefault(start, "call")
        for marker in self.markers:
            edges["content"].setdefault(marker, "content")
        for state, leads in self.transitions.items():
            known = edges.setdefault(_NAMES.get(state, state), {})
            for mark, to in leads:
                to = _NAMES.get(to, to)
                if to != "call" or tool_starts is not None:
                    known.setdefault(mark, to)
        return edges


def first_part(marks: Marks, thinking: Thinking) -> str:
    """The part that a text begins with."""
    if marks.initial is not None:
        return _NAMES.get(marks.initial, marks.initial)
    if marks.think_start is None or thinking == "closed":
        return "content"
    return "reasoning" if thinking == "open" else "opening"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """How to read the text of an answer.

    - ``thinking``: whether the text begins inside the reasoning.
    - ``tools``: reads calls; None: calls stay text.
    - ``trim``: white space after the thinking is part of its end mark.
    - ``exact``: the answer is held to a form, so that nothing in it is read as a slip.
    - ``given``: the beginning of the text, which the client supplied and does not get back.
    """

    marks: Marks = field(default_factory=Marks)
    thinking: Thinking = "closed"
    tools: ToolReader | None = None
    trim: bool = True
    exact: bool = False
    given: str = ""


class Finder:
    """Finds the first mark that ends a part, or begins a call in it. ``edges`` has what each leads
    to: a part, a ``call``, one without its mark (``bare``), one at the start of a ``line``, or the
    ``end`` of calls. ``section``: calls have begun, so that the next may come without a mark.
    """

    def __init__(self, reading: Reading, part: str, *, section: bool) -> None:
        marks, tools = reading.marks, reading.tools
        starts = None if tools is None else tools.format.starts
        edges = dict(marks.edges(starts).get(part, {}))
        if part in KINDS and not (reading.exact and part == "content"):
            if marks.think_start and marks.think_end and marks.initial is None:
                edges.setdefault(marks.think_start, "reasoning")
                edges.setdefault(marks.think_end, "content")
            if tools is not None:
                format = tools.format
                only = "" if starts else "<"  # then only a tag marks a call
                bare = [
                    text
                    for text in tools.named(format.bare)
                    if part == "content" or "|" in text or not text.isascii() or text[0] == only
                ]
                bare += tools.named(format.begins) if section else []
                lines = tools.named(format.lines) if part == "content" else []
                calls = dict.fromkeys(lines, "line") | dict.fromkeys(bare, "bare")
                edges = calls | edges | dict.fromkeys(format.all_ends if section else (), "end")
        self.edges = edges
        self.firsts = frozenset(mark[:1] for mark in edges)
        self._longest = max(map(len, edges), default=0)
        self._pattern = regex.compile(any_of(edges))

    def find(self, text: str, *, final: bool) -> tuple[int, str]:
        """Where the first mark is, and the mark; or where one may begin, and ""."""
        match = self._pattern.search(text, partial=not final)
        if match is None:
            return len(text), ""
        start, mark = match.start(), "" if match.partial else match[0]
        if mark and not final:  # the text may end in a longer mark, or in one that begins earlier
            for place in range(max(0, len(text) - self._longest), start + 1):
                rest = text[place:]
                if any(mark != each and each.startswith(rest) for each in self.edges):
                    return place, ""
        return start, mark


# ---- families ------------------------------------------------------------------------------------

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
_TOKENS = (  # tokens that mean nothing inside an answer
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
HARMONY = Marks(  # gpt-oss: channels; with a recipient, a message is a call
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
    """The marks of a model as mlx-lm knows them, or else from its template and added ``tokens``."""
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
