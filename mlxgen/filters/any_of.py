"""One of several specifications: the one that the text turns out to follow.

Of an ``AnyOf`` several may fit for a while. Of a ``FirstToken`` the first token chooses: it is for
a model that may begin to think or to call a tool and otherwise follows a schema. So does
``opening``, for the start of a text whose first space the decoder drops.

SentencePiece-style models begin their answer with a token such as ``▁{``: bytes `` {``, text
``{``. A filter constrains the text. So a first token that starts with a space goes to a filter
that wants one space and then what is specified, and every other first token to the plain one.

Invariant: a filter that is out was fed all tokens before the one that it did not take, so
taking that one back brings the filter in again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..errors import FilterError
from ..forks import forked
from ..tokens.vocabulary import AnyTokenizer, Token, Vocabulary
from .compose import bind_opening, objection, unchecked
from .protocol import (
    Filter,
    Int32Words,
    Objection,
    Specification,
    allows,
    is_by_bytes,
    left_out,
    words_of,
)
from .replay import WholeFilter, whole


@dataclass(frozen=True, slots=True)
class AnyOf:
    """Text that at least one of the specifications allows."""

    specifications: tuple[Specification, ...]

    @property
    def by_bytes(self) -> bool:
        return all(map(is_by_bytes, self.specifications))

    @property
    def left_out(self) -> Sequence[str]:
        return [note for spec in self.specifications for note in left_out(spec)]

    def bind(self, tokenizer: AnyTokenizer, vocab_size: int) -> AnyOfFilter:
        return AnyOfFilter([spec.bind(tokenizer, vocab_size) for spec in self.specifications])

    def bind_opening(self, tokenizer: AnyTokenizer, vocab_size: int) -> AnyOfFilter:
        return AnyOfFilter([bind_opening(s, tokenizer, vocab_size) for s in self.specifications])


@dataclass(frozen=True, slots=True)
class FirstToken:
    """``otherwise``, unless the text begins with a token that leads to another specification.

    The other specifications see the whole text, its first token included.
    """

    otherwise: Specification
    leads: tuple[tuple[Token, Specification], ...]

    @property
    def by_bytes(self) -> bool:
        return all(map(is_by_bytes, (self.otherwise, *(spec for _, spec in self.leads))))

    @property
    def left_out(self) -> Sequence[str]:
        return left_out(self.otherwise)

    def bind(self, tokenizer: AnyTokenizer, vocab_size: int) -> AnyOfFilter:
        return self._bound(self.otherwise.bind(tokenizer, vocab_size), tokenizer, vocab_size)

    def bind_opening(self, tokenizer: AnyTokenizer, vocab_size: int) -> AnyOfFilter:
        otherwise = bind_opening(self.otherwise, tokenizer, vocab_size)
        return self._bound(otherwise, tokenizer, vocab_size)

    def _bound(self, otherwise: Filter, tokenizer: AnyTokenizer, vocab_size: int) -> AnyOfFilter:
        leads = [spec.bind(tokenizer, vocab_size) for _, spec in self.leads]
        lanes = [words_of([token], vocab_size) for token, _ in self.leads]
        others = ~words_of([token for token, _ in self.leads], vocab_size)
        return AnyOfFilter([otherwise, *leads], [others, *lanes])


def opening(
    plain: Filter, after_space: Filter, vocabulary: Vocabulary, vocab_size: int
) -> AnyOfFilter:
    """Both ways in which a text may start: ``after_space`` wants a space, and then the same."""

    def lanes() -> Sequence[Int32Words]:
        spaced = words_of(vocabulary.starting_with(b" "), vocab_size)
        return ~spaced, spaced

    return AnyOfFilter([plain, after_space], vocabulary.derived(("spaced", vocab_size), lanes))


class AnyOfFilter:
    """The running filter; it rewinds and forks as well as its parts do.

    ``lanes`` are the first tokens of each part, if the first token is to choose one of them. A
    text without a token is then one of the first part.
    """

    def __init__(self, parts: Sequence[Filter], lanes: Sequence[Int32Words] = ()) -> None:
        self.parts = [whole(part) for part in parts]
        self._lanes = lanes
        self._out: dict[int, int] = {}  # by index: tokens before the one that a part did not take
        self._length = 0  # tokens so far
        self._alive = self.parts  # those that took all of them

    def _open_to(self, token: Token) -> list[WholeFilter]:
        """The parts to ask about a token."""
        if self._length or not self._lanes:
            return self._alive
        lanes = zip(self.parts, self._lanes, strict=True)
        return [part for part, lane in lanes if allows(lane, token)]

    def fill(self, row: Int32Words) -> bool:
        if len(self._alive) == 1:
            return self._alive[0].fill(row)
        row[:] = 0
        mine = np.empty_like(row)
        lanes = () if self._length else self._lanes
        for index, part in enumerate(self._alive):
            if not part.fill(mine):
                if not lanes:
                    return False
                mine[:] = -1
            row |= mine & lanes[index] if lanes else mine
        return True

    def asked(self) -> Sequence[Filter]:
        return self._alive

    def advance(self, token: Token) -> None:
        taking = self._alive
        if len(taking) > 1:  # a single one refuses by itself
            taking = [part for part in self._open_to(token) if part.validate([token])]
            if not taking:
                raise FilterError(f"none of {len(self.parts)} filters allows token {token} here")
        for part in taking:
            part.advance(token)
        if len(taking) < len(self._alive):
            for index, part in enumerate(self.parts):
                if all(part is not other for other in taking):
                    self._out.setdefault(index, self._length)
        self._length += 1
        self._alive = taking

    def can_end(self) -> bool:
        alive = self._alive[:1] if self._lanes and not self._length else self._alive
        return any(part.can_end() for part in alive)

    def reset(self) -> None:
        self.rewind(0)

    def rewind(self, to: int) -> None:
        for part in self.parts:
            part.rewind(to)
        self._length = min(self._length, to)
        self._out = {index: at for index, at in self._out.items() if at < self._length}
        self._alive = self._in()

    def fork(self) -> AnyOfFilter:
        twin = forked(self, shared=("_lanes", "_alive"), parts=[p.fork() for p in self.parts])
        twin._alive = twin._in()
        return twin

    def _in(self) -> list[WholeFilter]:
        return [part for index, part in enumerate(self.parts) if index not in self._out]

    def forced(self) -> Sequence[Token]:
        """What must come next, once one filter is left."""
        return self._alive[0].forced() if len(self._alive) == 1 else ()

    def unchecked(self) -> tuple[int, bool]:
        """A part is due if all filters by which the text may go on check it now."""
        counts, dues = zip(*map(unchecked, self._alive), strict=True)
        return max(counts), all(dues)

    def objection(self) -> Objection | None:
        """That of the filters by which the text may end, unless one of them has none."""
        is_due = self.unchecked()[1]
        found = [objection(part) for part in self._alive if is_due or part.can_end()]
        return found[0] if found and all(found) else None

    def validate(self, tokens: Sequence[Token]) -> int:
        parts = self._open_to(tokens[0]) if tokens else ()
        return max((part.validate(tokens) for part in parts), default=0)
