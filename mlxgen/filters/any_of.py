"""One of several specifications: the one that the text turns out to follow.

With ``AnyOf``, several may fit for a while. With ``FirstToken``, the first token decides: for a
model that may begin to think or to call a tool and otherwise follows a schema.

Invariant: a filter that dropped out was fed all tokens before the one that it refused, so taking
that one back brings the filter in again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..errors import FilterError
from ..forks import forked
from ..tokens.vocabulary import AnyTokenizer, Token
from ..workers import Work
from .protocol import (
    Filter,
    Int32Words,
    Objection,
    Running,
    Specification,
    allows,
    bind_opening,
    words_of,
)
from .replay import whole


@dataclass(frozen=True, slots=True)
class AnyOf:
    """Text that at least one of the specifications allows."""

    specifications: tuple[Specification, ...]

    def bind(self, tokenizer: AnyTokenizer, vocab_size: int) -> AnyOfFilter:
        return AnyOfFilter([spec.bind(tokenizer, vocab_size) for spec in self.specifications])

    def bind_opening(self, tokenizer: AnyTokenizer, vocab_size: int) -> AnyOfFilter:
        return AnyOfFilter([bind_opening(s, tokenizer, vocab_size) for s in self.specifications])


@dataclass(frozen=True, slots=True)
class FirstToken:
    """``spec`` for the whole text if that begins with ``token``, otherwise ``otherwise``."""

    otherwise: Specification
    token: Token
    spec: Specification

    @property
    def specifications(self) -> Sequence[Specification]:
        return (self.otherwise, self.spec)

    def bind(self, tokenizer: AnyTokenizer, vocab_size: int) -> AnyOfFilter:
        return self._bound(self.otherwise.bind(tokenizer, vocab_size), tokenizer, vocab_size)

    def bind_opening(self, tokenizer: AnyTokenizer, vocab_size: int) -> AnyOfFilter:
        otherwise = bind_opening(self.otherwise, tokenizer, vocab_size)
        return self._bound(otherwise, tokenizer, vocab_size)

    def _bound(self, otherwise: Filter, tokenizer: AnyTokenizer, vocab_size: int) -> AnyOfFilter:
        lane = words_of([self.token], vocab_size)
        return AnyOfFilter([otherwise, self.spec.bind(tokenizer, vocab_size)], [~lane, lane])


class AnyOfFilter(Running):
    """The running filter; it rewinds and forks as well as its parts do.

    ``lanes``: for each part, the first tokens that select it, if the first token decides. A text
    without a token then belongs to the first part.
    """

    def __init__(self, parts: Sequence[Filter], lanes: Sequence[Int32Words] = ()) -> None:
        self.parts = [whole(part) for part in parts]
        self.rewinds = all(part.rewinds for part in self.parts)
        self.checks = any(part.checks for part in self.parts)
        self._lanes = lanes
        self._steps = [tuple(range(len(parts)))]  # after each token: the parts that took all so far

    @property
    def _lanes_here(self) -> Sequence[Int32Words]:
        return self._lanes if len(self._steps) == 1 else ()

    def _alive(self) -> list[Running]:
        return [self.parts[index] for index in self._steps[-1]]

    def fill(self, row: Int32Words) -> bool:
        alive, lanes = self._alive(), self._lanes_here
        if len(alive) == 1:
            return alive[0].fill(row)
        row[:] = 0
        mine = np.empty_like(row)
        for index, part in enumerate(alive):
            if not part.fill(mine):
                if not lanes:
                    return False
                mine[:] = -1
            row |= mine & lanes[index] if lanes else mine
        return True

    def _taking(self, token: Token) -> list[int]:
        """Of the parts that took all tokens so far, those to ask about this one."""
        lanes = self._lanes_here
        return [i for i in self._steps[-1] if not lanes or allows(lanes[i], token)]

    def advance(self, token: Token, /) -> None:
        taking = self._steps[-1]
        if len(taking) > 1:  # a single part raises by itself
            parts = self.parts
            taking = tuple(i for i in self._taking(token) if parts[i].validate([token]))
            if not taking:
                raise FilterError(f"none of {len(parts)} filters allows token {token} here")
        for index in taking:
            self.parts[index].advance(token)
        self._steps.append(taking)

    def can_end(self) -> bool:
        alive = self._alive()
        return any(part.can_end() for part in (alive[:1] if self._lanes_here else alive))

    def rewind(self, to: int) -> None:
        for part in self.parts:
            part.rewind(to)
        del self._steps[to + 1 :]

    def fork(self) -> AnyOfFilter:
        return forked(self, shared=("_lanes",), parts=[part.fork() for part in self.parts])

    def forced(self) -> Sequence[Token]:
        """The tokens that must come next, once a single part is left."""
        alive = self._alive()
        return alive[0].forced() if len(alive) == 1 else ()

    def hint(self) -> Sequence[Token]:
        return next((run for part in self._alive() if (run := part.hint())), ())

    def validate(self, tokens: Sequence[Token]) -> int:
        taking = self._taking(tokens[0]) if tokens else ()
        return max((self.parts[index].validate(tokens) for index in taking), default=0)

    def unchecked(self) -> tuple[int, bool]:
        """A check is due if all parts that are still in have one due."""
        counts, dues = zip(*(part.unchecked() for part in self._alive()), strict=True)
        return max(counts), all(dues)

    def objection(self, *, ends: bool = False) -> Objection | Work | None:
        """The objection of a part that may end the text, or is due, if all such parts have one."""
        is_due = self.unchecked()[1] and not ends
        asked = [part for part in self._alive() if is_due or part.can_end()]
        found = [part.objection(ends=ends) for part in asked]
        return found[0] if found and all(found) else None
