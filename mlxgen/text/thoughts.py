"""Splits a growing text into the model's thinking and the answer after it.

The rules are those for reading a chat: thinking has begun before the text, or begins with its mark
as the first thing in the text, or after a header that says so; it lasts until one of its end marks.
The answer follows, without the white space before it, even if the model thinks again in it. The
reader does not know tokens: each step brings text, and how it was split does not matter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from ..forks import Steps
from ..search import first_mark

OPENING, THINKING, CONTENT, CALL = "opening", "reasoning", "content", "call"
_SPACE = "space"  # after the thinking, before the first character of the answer
_ANSWER = "answer"


@dataclass(frozen=True, slots=True)
class ThinkingMarks:
    """The marks that a model puts around its thinking.

    - ``state``: the part in which the text begins: ``opening``, ``reasoning`` or a header.
    - ``start``: the mark that begins the thinking at an ``opening``.
    - ``edges``: for each part, the marks that end it and the parts that they lead to; ``content``
      and ``call`` are the answer.
    """

    state: str
    start: str
    edges: Mapping[str, Mapping[str, str]]

    @property
    def end(self) -> str:
        """The mark that ends the thinking without a call; empty if there is none."""
        edges = self.edges.get(THINKING, {})
        return next((mark for mark, to in edges.items() if to != CALL), "")


_Step: TypeAlias = tuple[str, str, int]
"""The part in which the text ends, the characters that may yet begin a mark, and the number of
steps after which the thinking began, or -1."""


class Thoughts(Steps[_Step]):
    """The part of the text that is thinking; see the module."""

    __slots__ = ("_firsts", "marks")

    def __init__(self, marks: ThinkingMarks) -> None:
        self.marks = marks
        self._firsts = frozenset([mark[:1] for mark in marks.edges.get(THINKING, {})])
        super().__init__((marks.state, "", 0 if marks.state == THINKING else -1))

    def advance(self, text: str) -> str:
        """Takes one step; returns the text that is now known to belong to the answer.

        That is the end of the text so far: all of the step, or less, or more if an earlier step
        could have begun a mark.
        """
        last = self._steps[-1]
        state, held, began = last
        if state == _ANSWER:
            self._steps.append(last)
            return text
        if state == THINKING and not held and self._firsts.isdisjoint(text):
            self._steps.append(last)
            return ""
        state, held = self._read(state, held + text)
        if state == THINKING and began < 0:
            began = len(self._steps)
        answer, held = (held, "") if state == _ANSWER else ("", held)
        self._steps.append((state, held, began))
        return answer

    def _read(self, state: str, held: str) -> tuple[str, str]:
        """The part in which some text ends, and the end of the text that is still undecided."""
        while True:
            if state == OPENING:
                begun, start = held.lstrip(), self.marks.start
                if start and begun.startswith(start):
                    state, held = THINKING, begun[len(start) :]
                elif start.startswith(begun):
                    return state, held
                else:
                    return _ANSWER, held
            elif state == _SPACE:
                held = held.lstrip()
                return _ANSWER if held else _SPACE, held
            else:
                edges = self.marks.edges.get(state, {})
                place, mark = first_mark(held, edges)
                if not mark:
                    return state, held[place:]
                state, held = edges[mark], held[place + len(mark) :]
                if state == CONTENT:
                    state = _SPACE
                elif state == CALL:
                    return _ANSWER, held

    @property
    def is_open(self) -> bool:
        """Whether the text so far ends inside the thinking."""
        return self._steps[-1][0] == THINKING

    @property
    def is_over(self) -> bool:
        """Whether only the answer can follow."""
        return self._steps[-1][0] in (_ANSWER, _SPACE)

    @property
    def began(self) -> int:
        """The number of steps after which the thinking began; -1 if it has not."""
        return self._steps[-1][2]

    @property
    def undecided(self) -> int:
        """Characters at the end of the text that may turn out to be the beginning of the answer."""
        state, held, _ = self._steps[-1]
        return len(held) if state == OPENING else 0
