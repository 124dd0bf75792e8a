"""Whether an answer begins inside the thinking, how long that may be, and constraints that wait.

Invariant: what a constraint allows is exactly the text after the thinking, if there is any.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from ..filters import After, Specification
from ..filters.any_of import FirstToken
from ..images import plain
from ..text import ThinkingMarks
from ..tokens import Token
from .dialect import Dialect
from .splitter import Marks, Thinking, first_part

_TAIL = 64  # tokens at the end of a prompt in which its last mark is looked for
BUDGETS: Mapping[str, int | None] = MappingProxyType(
    {
        "none": 0,
        "minimal": 512,
        "low": 1024,
        "medium": 8192,
        "high": 24_576,
        "xhigh": None,
        "max": None,
    }
)
"""The tokens of thinking that each effort stands for, in models without grades of thinking."""


def budget_of(effort: str | None, usual: int | None, dialect: Dialect) -> int | None:
    """How many tokens a model may think, from an effort and what is usual; None: any number."""
    graded = dialect.grades and effort != "none"
    meant = None if effort is None or graded else BUDGETS[effort]
    if meant is None or usual is None:
        return usual if meant is None else meant
    return min(meant, usual)


def thinking_of(
    prompt: Sequence[Token], dialect: Dialect, begun: Mapping[str, Any] | None
) -> Thinking:
    """Whether the text after a rendered prompt begins inside the thinking.

    Only the generation prompt counts, which is the end of the prompt: a user who writes
    ``<think>`` changes nothing. ``begun`` is the message to continue; if it has no content, its
    reasoning goes on.
    """
    start, end = dialect.marks.think_start, dialect.marks.think_end
    if start is None or end is None:
        return "closed"
    if begun is not None:
        said = str(begun.get("content") or start)
        return "open" if said.rfind(start) > said.rfind(end) else "closed"
    pieces = map(dialect.vocabulary.piece, plain(prompt[-_TAIL:]))
    tail = b"".join(pieces).decode("utf-8", "replace").rstrip()
    if tail.endswith(end):
        return "closed"
    return "open" if tail.endswith(start) else "possible"


def going_on(marks: Marks, message: Mapping[str, Any]) -> Marks:
    """The marks of a text that goes on inside a message, after its header."""
    if marks.initial is None:
        return marks
    return replace(marks, initial="normal" if message.get("content") else "reasoning")


def after_thinking(
    spec: Specification, thinking: Thinking, dialect: Dialect, *, required: bool = True
) -> Specification:
    """The specification of what follows the thinking; ``required``: the text must not end
    before it. A model whose mark is plain text thinks only if the prompt began it."""
    end = dialect.marks.think_end
    if thinking == "closed" or end is None:
        return spec
    after = After(end, spec, required=required)
    if thinking == "open":
        return after
    first = dialect.think_start_tokens[0]
    if first not in dialect.vocabulary.added:  # it may as well begin the answer
        return spec
    return FirstToken(spec, ((first, after),))


def marks_of(
    thinking: Thinking, dialect: Dialect, tool_starts: Sequence[str] | None
) -> ThinkingMarks | None:
    """Where the thinking in an answer begins and ends; None if there is none.

    ``tool_starts`` begin a call, which ends it as well.
    """
    marks = dialect.marks
    first = first_part(marks, thinking)
    if first == "content":
        return None
    return ThinkingMarks(first, marks.think_start or "", marks.edges(tool_starts))


def in_answer(spec: Specification, dialect: Dialect) -> Specification:
    """The specification of an answer that comes after a header."""
    for mark in reversed(dialect.marks.answer):
        spec = After(mark, spec, required=True)
    return spec
