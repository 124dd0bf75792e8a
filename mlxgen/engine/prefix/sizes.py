"""How many bytes what is kept of a prefix counts.

What goes first depends on it. So it is the same on all machines that hold parts of one model, and
on none of them less than is held there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...errors import LoadError
from ..kv.footprint import Footprint
from .segments import Segment, Snapshot


class Sizes:
    """The bytes of the arrays, unless the ``footprints`` of several parts of a model differ: then
    what there is in the part that holds the most.

    Raises ``LoadError`` if what one part can take back or go on from, another one could not.
    """

    def __init__(self, footprints: Sequence[Footprint] = ()) -> None:
        self._parts = {replace(each, weights=0) for each in footprints}
        if (
            len({(not each.fixed, *sorted({w for _, w in each.windows})) for each in self._parts})
            > 1
        ):
            raise LoadError(
                "the parts of this model have layers of different kinds, so that they cannot keep"
                " the same prefixes; use another number of machines, or fewer"
            )

    def of(self, held: Segment | Snapshot) -> int:
        if len(self._parts) < 2:
            return held.nbytes
        if isinstance(held, Segment):
            return self.of_first(held, held.count)
        return max(each.snapshot_at(held.length) for each in self._parts)

    def of_first(self, segment: Segment, count: int) -> int:
        """Of the first ``count`` tokens of a segment."""
        if len(self._parts) > 1:
            return count * max(each.growing + each.early for each in self._parts)
        return segment.nbytes if count == segment.count else segment.bytes_of(count)
