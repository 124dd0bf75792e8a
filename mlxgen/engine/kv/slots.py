"""The sequences that go through the model together, and the KV of each.

Owns the slots of a group: which sequence has which, how long each is, and what can be taken back.
Must never know why a token is fed or taken back. Invariant: the slots in use are a group's first
ones, without gaps; ``Slot.length`` is the number of tokens that a slot holds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import (
    ArraysCache,
    CacheList,
    KVCache,
    RotatingKVCache,
)

from .layers import CacheFactory, LayerCache, Model, Run, arrays_in, leaves
from .slot_caches import GROWTH, SLACK, Keys, Pass
from .states import Foreign, SlotStates

EVERY, KEPT = 64, 3  # tokens between two checkpoints, and how many are kept, the oldest included
FEW = 4  # slots added at a time; twice as many above 16


class Slot:
    """The place of one sequence in a group, made with ``room`` for that many tokens.

    Going back is exact and free for attention layers, and for windows as far as their ring has
    slack. Recurrent layers can undo the last pass, and mlx-lm's own caches what they can trim;
    beyond that they restore a checkpoint. If there is none, the slot is emptied: ``length`` is 0
    then, and the whole history is pending again.
    """

    __slots__ = (
        "__weakref__",
        "_checkpoints",
        "_least",
        "_reached",
        "group",
        "index",
        "length",
        "room",
    )

    def __init__(self, group: Group, index: int, room: int) -> None:
        self.group = group
        # Lengths, with the states of the layers that need them; never written to
        self._checkpoints: list[tuple[int, list[Any]]] = []
        self._reached = 0  # its greatest length so far, which tells what a ring has overwritten
        self._least = 0  # no going back before this: a full window had dropped keys before ``fill``
        self.index = index
        self.length = 0
        self.room = room

    @property
    def nbytes(self) -> int:
        """This sequence's share of the group's bytes."""
        return self.group.nbytes // max(1, len(self.group.members))

    def arrays(self) -> list[mx.array]:
        """All arrays to evaluate to bring the slot up to date."""
        return self.group.arrays()

    def can_undo(self, count: int) -> bool:
        """Whether a pass of ``count`` tokens could be undone exactly."""
        group = self.group
        if not all(layer.can_undo(count, count) for layer in group.foreign):
            return False
        return count <= (1 if group.states else SLACK)

    def forward(self, model: Model, tokens: mx.array) -> mx.array:
        """Run ``tokens`` [1, n] in this slot only: logits [1, n, vocab], lazy."""
        return self.group.run(model, tokens, [tokens.shape[1]], self.index)

    def checkpoint(self, before: int = 0) -> None:
        """Save this place if a pass of ``before`` tokens could not be undone; with 0, if a
        checkpoint is due and nothing else could lead back here later."""
        group, last = self.group, self._checkpoints[-1][0] if self._checkpoints else -EVERY
        if not group.kept or not self.length or self.length - last < (1 if before else EVERY):
            return
        if self.can_undo(before or EVERY):
            return
        states = [layer.copy_of(self.index) for layer in group.kept]
        mx.async_eval(list(arrays_in(states)))  # else a copy keeps the states of all slots alive
        self._checkpoints.append((self.length, states))
        if len(self._checkpoints) > KEPT:
            del self._checkpoints[1]

    def go_back(self, to: int) -> None:
        """Hold at most ``to`` tokens: exactly that many if possible, else fewer."""
        group, count = self.group, self.length - to
        if count <= 0:
            return
        while self._checkpoints and self._checkpoints[-1][0] > to:
            self._checkpoints.pop()
        if to and not group.undo(self.index, count):
            if not self._checkpoints:
                self.spoil()
                return
            to, states = self._checkpoints[-1]
            group.restore(self.index, states)
        window = group.window
        lost = window is not None and self._reached > max(window, to) + SLACK
        if lost or to < max(1, self._least):
            self.spoil()  # a window would need keys that it no longer holds
        else:
            self.length = to

    def parts(self, ends: Sequence[int]) -> list[tuple[Run, ...]]:
        """Copies of the tokens between each two consecutive ``ends``, for each layer that can be
        cut; not evaluated yet."""
        held = [layer for layer in self.group.layers if _is_cut(layer)]
        return [
            tuple(() if each.empty() else each.copy_of(self.index, *place) for each in held)
            for place in pairwise(ends)
        ]

    def others(self) -> list[LayerCache]:
        """The layers that cannot be cut, as caches of one sequence."""
        fresh = zip(self.group.layers, leaves(self.group.make()), strict=True)
        found = [(layer, leaf) for layer, leaf in fresh if not _is_cut(layer)]
        for layer, leaf in found:
            layer.get(self.index, self.length, leaf)
        return [leaf for _, leaf in found]

    def spoil(self) -> None:
        """Empty the slot: a pass failed half-way through the layers, or nothing leads back."""
        self._checkpoints.clear()
        self.length = self._reached = self._least = 0
        self.group.restore(self.index, [None] * len(self.group.kept))

    def fill(
        self, columns: Sequence[Sequence[Run]], others: Sequence[LayerCache], length: int
    ) -> None:
        """Hold ``length`` tokens: from consecutive pieces for each layer that can be cut, and from
        caches of one sequence for the others."""
        group, pieces, caches = self.group, iter(columns), iter(others)
        try:
            for layer in group.layers:
                if not _is_cut(layer):
                    layer.put(self.index, next(caches), group.rooms)
                elif column := [piece for piece in next(pieces) if piece]:
                    layer.write(self.index, column, group.rooms, self.room)
            group.changed()
        except BaseException:  # some layers may be filled already
            self.spoil()
            raise
        self.length = self._reached = length
        self._least = length - 1 if group.window is not None and length > group.window else 0
        self.checkpoint()

    def copy_from(self, other: Slot) -> None:
        """Hold what another slot does: one of the same group, or of another one, if both are alone
        in theirs."""
        if self.group is other.group:
            self.group.copy(other.index, self.index, other.length)
        else:
            for layer, theirs in zip(self.group.layers, other.group.layers, strict=True):
                layer.share(theirs)
            self.group.changed()
        self.length, self._reached, self._least = other.length, other._reached, other._least
        self._checkpoints = list(other._checkpoints)


class Group:
    """Any number of sequences of similar length in one set of caches; see ``Slots``.

    ``rooms``: how many slots there is room for. ``is_single``: only one, as some layers are in
    mlx-lm's ``own`` caches, or all, if the model can run with no others. ``kept``: the layers that
    need checkpoints to go back far.
    """

    def __init__(self, make: CacheFactory, number: int = 0, *, own: bool = False) -> None:
        self.make = make
        self.number = number
        self._empty = make()
        self.layers = [_slotted(leaf, own) for leaf in leaves(self._empty)]
        self._keys = [layer for layer in self.layers if isinstance(layer, Keys)]
        self.states = [layer for layer in self.layers if isinstance(layer, SlotStates)]
        self.foreign = [layer for layer in self.layers if isinstance(layer, Foreign)]
        self.kept = [layer for layer in self.layers if not isinstance(layer, Keys)]
        self.is_single = own or bool(self.foreign)
        windows = [layer.window for layer in self._keys if layer.window is not None]
        self.window = min(windows, default=None)  # the narrowest one
        self.members: list[Slot] = []
        self.rooms = 0
        self._face()
        self._reach = 0  # the position up to which all layers are known to have places
        self._nbytes: int | None = 0  # of all buffers; None once one of them has changed
        self._undoable: frozenset[int] = frozenset()

    def _face(self) -> None:
        """Give the model the caches for one slot, or for several."""
        faces = iter([layer.face(self.rooms < 2) for layer in self.layers])
        self.caches = [_like(each, faces) for each in self._empty]
        self._ones = [layer.one for layer in self._keys if layer.one is not None]
        self._stepped = [layer for layer in self._keys if layer.one is None]

    @property
    def nbytes(self) -> int:
        """The bytes of all buffers."""
        if self._nbytes is None:
            self._nbytes = sum([array.nbytes for array in self.arrays()])
        return self._nbytes

    def arrays(self) -> list[mx.array]:
        """All buffers."""
        return [array for layer in self.layers for array in layer.arrays]

    # ---- members ---------------------------------------------------------------------------

    def add(self, room: int) -> Slot:
        """An empty slot, for a sequence of ``room`` tokens."""
        assert not (self.is_single and self.members)
        member = Slot(self, len(self.members), room)
        self.members.append(member)
        self._have(max(self.rooms, rooms_for(len(self.members))))
        for layer in self.kept:
            layer.keep(len(self.members))
        self.changed()
        return member

    def leave(self, member: Slot) -> None:
        """Free a slot, if it is still in use; the last sequence moves into its place."""
        if member not in self.members:
            return
        index, last = member.index, len(self.members) - 1
        mover = self.members.pop()
        if index != last:
            self.copy(last, index, mover.length)
            mover.index = index
            self.members[index] = mover
        if not self.members:
            self.clear()
            return
        for layer in self.kept:
            layer.keep(len(self.members))
        rooms, longest = rooms_for(len(self.members)), self._longest()
        # Only if it frees half, so that leaving and joining in turn copies nothing.
        frees = 2 * rooms <= self.rooms
        if frees or any(layer.places > 2 * (longest + GROWTH) for layer in self._keys):
            for layer in self._keys:
                layer.resize(rooms if frees else self.rooms, longest + 1)
        self._have(rooms if frees else self.rooms)
        self.changed()

    def clear(self) -> None:
        """Free all slots, whatever they hold."""
        self.members.clear()
        for layer in self.layers:
            layer.clear()
        self._have(0)
        self.changed()

    @property
    def places(self) -> int:
        """How many places each slot has, in the layer that has the most."""
        return max([layer.places for layer in self._keys], default=0)

    def _have(self, rooms: int) -> None:
        """Have room for this many slots from the next pass on."""
        if (rooms < 2) != (self.rooms < 2):
            self.rooms = rooms
            self._face()
        self.rooms = rooms

    def copy(self, source: int, target: int, length: int) -> None:
        """Copy what one slot holds to another."""
        if length:
            self._reserve(length)
            for layer in self.layers:
                layer.move(source, target, length)
            self.changed()
        else:  # an earlier sequence may have left a state
            for state in self.states:
                state.restore(target, None)

    def changed(self) -> None:
        """Note that buffers have changed size, or that other slots are in use."""
        self._reach, self._nbytes, self._undoable = 0, None, frozenset()

    def _reserve(self, end: int) -> None:
        """Make places for the positions before ``end``, and for the room that was asked for, in
        every layer that has places."""
        if end > self._reach:
            self.changed()
            self._reach = -(-max(end, self._longest()) // GROWTH) * GROWTH
            for layer in self._keys:
                layer.resize(self.rooms, max(self._reach, layer.places))

    def _longest(self) -> int:
        return max([max(member.length, member.room) for member in self.members])

    # ---- passes ----------------------------------------------------------------------------

    def run(
        self, model: Model, tokens: mx.array, lengths: Sequence[int], first: int = 0
    ) -> mx.array:
        """Run the next ``lengths`` tokens of the slots from ``first`` on; returns the logits [n,
        most, vocab], lazy.

        The rows of ``tokens`` [n, most] are padded at their ends. Nothing is gathered: a slot
        between others takes part with a length of 0, and keeps what it holds. With recurrent layers
        all other lengths must be equal, as their states would take in the padding. With windows, a
        pass of several slots has ``SLACK`` tokens at most.
        """
        members, most = self.members[first : first + len(lengths)], tokens.shape[1]
        runs, positions, undoable = [], [], set()
        for index, length in enumerate(lengths):
            member = members[index]
            if length and self.kept:  # not after the pass, all of which is submitted at once
                member.checkpoint()
            if length == most == 1:
                undoable.add(first + index)
            runs.append(length > 0)
            positions.append(member.length)
        start = min(positions)
        try:
            if max(positions) + most > self._reach:
                self._reserve(max(positions) + most)
            for one in self._ones:
                one.offset = start
            if self._stepped or self.states:
                held, rooms, reach = len(self.members), self.rooms, self._reach
                step = Pass(first, positions, runs, held=held, count=most, rooms=rooms, reach=reach)
                for layer in self._stepped:
                    layer.step, layer.offset = step, step.offset
                for state in self.states:
                    state.begin(step)
            logits = model(tokens, cache=self.caches)
            for layer in self._stepped:
                layer.step = None
            for state in self.states:
                state.end()
            if self.kept or not start:  # their arrays are replaced, not updated
                self._nbytes = None
            if not start:  # arrays made just now may have fewer places
                self._reach = 0
        except BaseException:
            self._undoable = frozenset()
            for member, runs_too in zip(members, runs, strict=True):
                if runs_too:
                    member.spoil()
            raise
        self._undoable = frozenset(undoable)
        for member, length in zip(members, lengths, strict=True):
            end = member.length + most  # in a ring, the padding has overwritten older keys
            member._reached = max(member._reached, end)
            member.length += length
        return logits

    def undo(self, index: int, count: int) -> bool:
        """Undo the last ``count`` tokens of a slot in the layers that otherwise need checkpoints;
        False if that is impossible.

        Either way, the states can no longer undo the slot's last pass afterwards.
        """
        possible = not self.states or (count == 1 and index in self._undoable)
        possible = possible and all(layer.can_undo(count) for layer in self.foreign)
        self._undoable -= {index}
        if possible:
            for layer in self.kept:
                layer.undo(index, count)
            self._nbytes = None if self.kept else self._nbytes
        return possible

    def restore(self, index: int, states: Sequence[Any]) -> None:
        """Restore the ``kept`` layers' states of a slot from a checkpoint; None: of no tokens."""
        for layer, state in zip(self.kept, states, strict=True):
            layer.restore(index, state)
        self._nbytes = None

    def check_integrity(self) -> None:
        """Assert the invariant; for tests."""
        assert [member.index for member in self.members] == list(range(len(self.members)))
        states = [array for layer in self.states for array in layer.arrays]
        assert all(array.shape[0] == len(self.members) for array in states)
        assert self.nbytes == sum(array.nbytes for array in self.arrays())


def rooms_for(count: int) -> int:
    """How many slots to have for ``count`` sequences: a few more, as a change copies them all."""
    if count < FEW:
        return count if count < 3 else FEW
    step = FEW if count <= 4 * FEW else 2 * FEW
    return -(-count // step) * step


def _slotted(layer: LayerCache, own: bool) -> Any:
    """What replaces a cache for one sequence: a cache for many, else mlx-lm's ``own``."""
    kind = type(layer)
    if kind is Keys:
        return Keys(how=layer.how)
    if kind is KVCache:
        return Keys()
    if kind is RotatingKVCache and layer.keep == 0 and not own:
        return Keys(window=layer.max_size)
    if kind is ArraysCache and not own:
        return SlotStates(len(layer.cache))
    return Foreign(layer)


def _like(layer: LayerCache, faces: Iterator[Any]) -> Any:
    """The next of some caches, nested in lists as the layer is."""
    if type(layer) is CacheList:
        return CacheList(*[_like(each, faces) for each in layer.caches])
    return next(faces)


def _is_cut(layer: Any) -> bool:
    """Whether a layer holds its tokens side by side, so any run of them can be cut out."""
    return isinstance(layer, Keys) and layer.window is None
