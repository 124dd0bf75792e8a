"""Whether an answer begins inside the thinking, and constraints that wait until it ends.

Invariant: a constraint applies to exactly the text after the thinking, if there is any thinking.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from ..filters import After, FirstToken, Specification
from ..images import plain
from ..text import ThinkingMarks
from ..tokens import Token
from .dialect import Dialect
from .marks import Marks, Thinking, first_part

_TAIL = 64  # tokens at the end of a prompt, searched for its last mark


class Beginning(NamedTuple):
    """How an answer begins: whether inside the thinking, the ``marks`` of its text, and the marks
    of the thinking that may come."""

    thinking: Thinking
    marks: Marks
    limits: ThinkingMarks | None


def beginning_of(
    prompt: Sequence[Token],
    dialect: Dialect,
    begun: Mapping[str, Any] | None = None,
    tool_starts: Sequence[str] | None = None,
) -> Beginning:
    """How the text after a rendered prompt begins.

    Only the end of the prompt counts, which is the generation prompt: a user who writes ``<think>``
    changes nothing. ``begun`` is the message to continue, after its header; if it has no content,
    its reasoning goes on. ``tool_starts`` begin a call, which also ends the thinking.
    """
    marks = dialect.marks
    thinking: Thinking = "closed"
    start, end = marks.think_start, marks.think_end
    if begun is not None and marks.initial is not None:
        marks = replace(marks, initial="normal" if begun.get("content") else "reasoning")
    if start is None or end is None:
        pass
    elif begun is not None:
        said = str(begun.get("content") or start)
        thinking = "open" if said.rfind(start) > said.rfind(end) else "closed"
    else:
        pieces = map(dialect.vocabulary.piece, plain(prompt[-_TAIL:]))
        tail = b"".join(pieces).decode("utf-8", "replace").rstrip()
        if not tail.endswith(end):
            thinking = "open" if tail.endswith(start) else "possible"
    first = first_part(marks, thinking)
    if first == "content":
        return Beginning(thinking, marks, None)
    limits = ThinkingMarks(first, start or "", marks.edges(tool_starts))
    return Beginning(thinking, marks, limits)


def after_thinking(
    spec: Specification, thinking: Thinking, dialect: Dialect, *, required: bool = True
) -> Specification:
    """``spec``, applied to what follows the thinking; ``required``: the text must not end before
    that. A model whose start mark is plain text thinks only if the prompt has the mark."""
    end = dialect.marks.think_end
    if thinking == "closed" or end is None:
        return spec
    after = After(end, spec, required=required)
    if thinking == "open":
        return after
    first = dialect.think_start_tokens[0]
    if first not in dialect.vocabulary.added:  # the token may just as well begin the answer
        return spec
    return FirstToken(spec, first, after)


def in_answer(spec: Specification, dialect: Dialect) -> Specification:
    """``spec``, applied to the answer after its header."""
    for mark in reversed(dialect.marks.answer):
        spec = After(mark, spec, required=True)
    return spec
