"""The caches of one sequence on its own, which can go back on every cache type.

Owns mlx-lm's cache objects of one sequence, how many tokens they hold, and the checkpoints that
make those that cannot be trimmed rewindable. Must never know which tokens these are. Invariant:
every layer holds ``length`` tokens; ``go_back`` leaves ``length`` at the wanted place or before
it, never after.

There are three ways back, tried in this order: trim every layer (plain and quantised caches, and
rotating ones that have not wrapped yet); restore the nearest checkpoint; start again from
nothing. The last one always works, so nothing is ever refused.

Arrays of a cache are updated in place, and a buffer with a second owner is copied by the next
update. So a fork shares its buffers until one side writes, and checkpoints are taken rarely, and
only if a trim would not do.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import mlx.core as mx

from .layers import (
    EVERY,
    STEP,
    CacheFactory,
    Checkpoints,
    LayerCache,
    Model,
    Run,
    can_trim,
    cheap_to_keep,
    copied,
    cut,
    fill,
    keys_and_values,
    leaves,
    owned,
    restore,
    sliceable,
)


class Alone:
    """See the module. ``make`` builds the empty caches of the model, one for each layer; what they
    are filled with is to have room for ``room`` tokens. ``eager``: checkpoints are worth a copy of
    a window."""

    __slots__ = (
        "__weakref__",
        "_make",
        "_plain",
        "_room",
        "caches",
        "checkpoints",
        "eager",
        "length",
    )
    group = None  # it runs by itself
    index = 0

    def __init__(
        self,
        make: CacheFactory,
        caches: list[LayerCache] | None = None,
        length: int = 0,
        *,
        room: int = 0,
        eager: bool = False,
    ) -> None:
        self._make, self._room = make, room
        self.caches = make() if caches is None else caches
        self.length = length
        # Whether every layer can be trimmed at any time; needed at every step.
        self._plain = all(map(sliceable, leaves(self.caches)))
        self.checkpoints: Checkpoints[list[LayerCache]] = Checkpoints()  # of the other layers
        self.eager = eager

    @property
    def needs_snapshots(self) -> bool:
        """Whether there are places that a trim cannot go back to."""
        return not self._plain

    @property
    def nbytes(self) -> int:
        """The bytes of the buffers that the caches hold; shared ones count in full."""
        return sum(0 if c.empty() else int(c.nbytes) for c in self.caches)

    def forward(self, model: Model, tokens: mx.array) -> mx.array:
        """Run ``tokens`` ([1, n], may be lazy) through the model; nothing is evaluated.

        Returns logits [1, n, vocab]. After a pass that fails nothing is held, as layers may hold
        different tokens.
        """
        try:
            logits = model(tokens, cache=self.caches)
        except BaseException:
            self.spoil()
            raise
        self.length += tokens.shape[1]
        if not self._plain:
            self.checkpoint()
        return logits

    def arrays(self) -> list[Any]:
        """Everything to evaluate so that the caches are up to date."""
        return [c.state for c in self.caches if not c.empty()]

    def can_undo(self, count: int) -> bool:
        """Whether a pass of ``count`` tokens could be undone exactly by a trim."""
        return self._plain or all(can_trim(leaf, count, count) for leaf in leaves(self.caches))

    def checkpoint(self, before: int = 0) -> None:
        """Remember this place if a trim could not undo a pass of ``before`` tokens; with 0, if one
        is due, and a trim could not go back to it later."""
        due = self.checkpoints.is_due(self.length, 1 if before else EVERY)
        if not self.length or not due or self.can_undo(before or EVERY):
            return
        if before or self.eager or all(map(cheap_to_keep, leaves(self.caches))):
            fixed = [copied(leaf) for leaf in leaves(self.caches) if not sliceable(leaf)]
            self.checkpoints.add(self.length, fixed)

    def go_back(self, to: int) -> None:
        """Hold at most ``to`` tokens: exactly that many if a trim is exact, else maybe fewer."""
        count = self.length - to
        if count <= 0:
            return
        nearest = self.checkpoints.back_to(to)
        trimmed = list(leaves(self.caches))
        if not all(can_trim(leaf, count) for leaf in trimmed):
            self.eager = True
            if nearest is None:
                self.spoil()
                return
            length, states = nearest
            restore(self.caches, states)
            count = self.length - length
            trimmed = [leaf for leaf in trimmed if sliceable(leaf)]
        for leaf in trimmed:
            leaf.trim(count)
        self.length -= count

    def fork(self) -> Alone:
        """An independent copy that shares every buffer until one of the two writes."""
        twin = Alone(self._make, copied(self.caches), self.length, eager=self.eager)
        twin.checkpoints = self.checkpoints.fork()
        return twin

    def fill(
        self, columns: Sequence[Sequence[Run]], others: Sequence[LayerCache], length: int
    ) -> None:
        """Hold ``length`` tokens: pieces that follow one another for each layer that can be cut,
        and caches for the others, which share their arrays until one writes.

        Nothing is evaluated. Each layer that can be cut is one concatenation, so the sequence is
        copied once.
        """
        spare = max(0, -(-self._room // STEP) * STEP - length)
        held = filter(sliceable, leaves(self.caches))
        for leaf, column in zip(held, columns, strict=True):
            joined = []
            for same in zip(*column, strict=True):
                shape, dtype = same[0].shape, same[0].dtype
                more = [mx.zeros((*shape[:-2], spare, shape[-1]), dtype)] if spare else []
                joined.append(mx.concatenate([*same, *more], axis=-2))
            fill(leaf, tuple(joined), length)
        restore(self.caches, others)
        self.length = length

    def parts(self, ends: Sequence[int]) -> list[tuple[Run, ...]]:
        """Copies of the tokens from each of some places to the next one, of each layer that can be
        cut; not evaluated yet."""
        held = [keys_and_values(leaf) for leaf in leaves(self.caches) if sliceable(leaf)]
        return [
            tuple(tuple(map(owned, cut(run, *place))) for run in held) for place in pairwise(ends)
        ]

    def whole(self) -> list[list[Run]]:
        """All tokens in one piece, of each layer that can be cut; shares its buffers."""
        held = [leaf for leaf in leaves(self.caches) if sliceable(leaf)]
        return [[cut(keys_and_values(leaf), 0, self.length)] for leaf in held]

    def others(self) -> list[LayerCache]:
        """The layers that cannot be cut; they are not copied."""
        return [leaf for leaf in leaves(self.caches) if not sliceable(leaf)]

    def is_even(self) -> bool:
        """Whether each layer that can be cut holds all tokens, or was never filled."""
        cut = filter(sliceable, leaves(self.caches))
        return all(leaf.empty() or leaf.offset == self.length for leaf in cut)

    def spoil(self) -> None:
        """Hold nothing: a pass failed half-way through the layers, or nothing leads back."""
        self.caches = self._make()
        self.length = 0
        self.checkpoints.clear()
