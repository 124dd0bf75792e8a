"""The sequences that go through the model together, and the KV part of each.

Owns the slots of a batch: which sequence has which, how long each is, and what can be taken
back. Must never know why a token is fed or taken back. Invariant: the slots in use are the first
ones, without gaps; ``Slot.length`` is the number of tokens that a slot holds.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Tokens
from itertools import pairwise
from typing import Any

import mlx.core as mx

from ...errors import StateError
from .alone import Alone
from .checkpoints import EVERY, Checkpoints
from .footprint import Footprint
from .layers import CacheFactory, LayerCache, Model, Runs, leaves
from .places import GROWTH, Pass
from .slot_caches import SLACK, SlotKeys, SlotLayer, SlotState, States, slot_layer

FEW = 4  # slots that are added at a time; twice as many once there are 16
WASTE = 2  # there may be that many times as much padding as tokens


class Slot:
    """The place of one sequence in a batch, made by ``Slots.join``.

    Going back is exact and free for attention layers. Recurrent layers can undo the last pass;
    for anything more they restore a checkpoint, and if there is none, nothing is held any more:
    ``length`` is 0 then, everything is pending again, and the sequence has to leave the slot.
    """

    __slots__ = ("__weakref__", "_checkpoints", "_least", "_reached", "index", "length", "slots")

    def __init__(self, slots: Slots, index: int, length: int) -> None:
        self.slots = slots
        self._checkpoints: Checkpoints[list[States]] = Checkpoints()  # of the recurrent layers
        self._reached = length  # its greatest length so far: it tells what a ring has overwritten
        # What a full window dropped before the sequence joined is lost.
        self._least = length - 1 if slots.window is not None and length > slots.window else 0
        self.index = index
        self.length = length

    @property
    def needs_snapshots(self) -> bool:
        """Whether there may be places to which only a snapshot leads back."""
        return self.slots.recurrent

    @property
    def nbytes(self) -> int:
        """This sequence's share of the batch's bytes."""
        return self.slots.nbytes // max(1, len(self.slots))

    def can_undo(self, count: int) -> bool:
        """Whether a pass of ``count`` tokens could be undone exactly."""
        return count <= 1 or (not self.slots.recurrent and count <= SLACK)

    def advance(self, count: int) -> None:
        """Note that the next ``count`` tokens have run."""
        self.length += count
        self._reached = max(self._reached, self.length)

    def checkpoint(self, before: int = 0) -> None:
        """Remember this place if a pass of ``before`` tokens could not be undone; with 0, if one is
        due, and nothing else could lead back to it later."""
        if not self.slots.recurrent or before == 1:
            return
        if self._checkpoints.is_due(self.length, 1 if before else EVERY):
            states = [layer.copy_of(self.index) for layer in self.slots.states]
            mx.async_eval(states)  # else a copy keeps the states of all slots alive
            self._checkpoints.add(self.length, states)

    def go_back(self, to: int) -> None:
        """Hold at most ``to`` tokens: exactly that many if possible, else fewer."""
        slots, count = self.slots, self.length - to
        if count <= 0:
            return
        nearest = self._checkpoints.back_to(to)
        if slots.recurrent and not slots.undo(self.index, count):
            if nearest is None:
                self.length = 0
                return
            to, states = nearest
            for layer, state in zip(slots.states, states, strict=True):
                layer.restore(self.index, state)
        window = slots.window
        if to < self._least or (
            window is not None and self._reached > max(window + SLACK, to + SLACK)
        ):
            to = 0  # a window would need keys that it no longer holds
        self.length = to

    def parts(self, ends: Tokens[int]) -> list[tuple[Runs, ...]]:
        """Copies of the tokens from each of some places to the next one, of each layer that can be
        cut; not evaluated yet."""
        held = [layer.places for layer in self.slots.layers if _is_cut(layer)]
        return [
            tuple(() if each.empty else each.copy_of(self.index, start, stop) for each in held)
            for start, stop in pairwise(ends)
        ]

    def others(self) -> list[LayerCache]:
        """The layers that cannot be cut, in caches of one sequence."""
        fresh = zip(self.slots.layers, leaves(self.slots.make()), strict=True)
        found = [(layer, leaf) for layer, leaf in fresh if not _is_cut(layer)]
        for layer, leaf in found:
            layer.get(self.index, self.length, leaf)
        return [leaf for _, leaf in found]

    def is_even(self) -> bool:
        """Whether each layer that can be cut holds all tokens: a pass that fails leaves none."""
        return True

    def spoil(self) -> None:
        """Hold nothing: a pass of this sequence failed half-way through the layers."""
        self._checkpoints.clear()
        self.length = 0


class Slots:
    """Any number of sequences in one set of caches.

    ``make`` builds the model's empty caches for one sequence; a pass may read up to ``spare``
    unused places. Raises ``StateError`` for models with a cache that has no counterpart for
    several sequences.
    """

    def __init__(self, make: CacheFactory, spare: int = 1 << 40) -> None:
        self._spare = spare
        self.make = make
        layers = [slot_layer(layer) for layer in make()]
        if any(layer is None for layer in layers):
            raise StateError("this model's caches cannot hold several sequences; run each alone")
        self.caches: list[Any] = layers
        self.layers = list(leaves(layers))
        self._keys = [c for c in self.layers if isinstance(c, SlotKeys)]
        self.states = [c for c in self.layers if isinstance(c, SlotState)]
        windows = [c.window for c in self._keys if c.window is not None]
        self.window = min(windows, default=None)  # the narrowest one
        self.recurrent = bool(self.states)
        # States are replaced, not updated, and a stretch that ends may get one place more.
        self._resized = self.recurrent or any(len(c.places.stretches) > 1 for c in self._keys)
        self._members: list[Slot] = []
        self._room = 0
        self._reach = 0  # up to which position all layers have places, as far as that is known
        self._nbytes: int | None = 0  # of all buffers, or None once one of them has changed
        self._undoable: frozenset[int] = frozenset()

    def __len__(self) -> int:
        return len(self._members)

    @property
    def nbytes(self) -> int:
        """The bytes of all buffers."""
        if self._nbytes is None:
            self._nbytes = sum([array.nbytes for array in self.arrays()])
        return self._nbytes

    def arrays(self) -> list[mx.array]:
        """All buffers."""
        return [array for layer in self.layers for array in layer.arrays()]

    def nbytes_with(self, footprint: Footprint, joining: Tokens[int], ahead: int) -> int:
        """The bytes of all buffers once the suitable ones of some sequences have joined and the
        longest sequence has grown by ``ahead`` tokens; ``joining`` are their lengths."""
        lengths = [member.length for member in self._members]
        lengths += [joining[i] for i in self.suitable(joining)]
        if not lengths:
            return 0
        rooms = max(self._room, _rooms(len(lengths)))
        return max(self.nbytes, footprint.together(rooms, max(lengths) + ahead))

    def suitable(self, joining: Tokens[int]) -> list[int]:
        """Which sequences of these lengths should join, as indexes; the shortest come first.

        Every slot has as many places as the longest sequence needs, and a pass reads them all.
        So a sequence of another order of magnitude would take more memory and time here than in
        a pass of its own. A single sequence stays alone.
        """
        lengths = [member.length for member in self._members]
        chosen = []
        for i in sorted(range(len(joining)), key=lambda i: joining[i]):
            if self._suits(joining[i], lengths):
                lengths.append(joining[i])
                chosen.append(i)
        return chosen if len(lengths) > 1 else []

    def in_the_way(self, length: int) -> Slot | None:
        """The longest sequence, if one of ``length`` tokens suits all others but not that one."""
        members = sorted(self._members, key=lambda member: member.length)
        lengths = [member.length for member in members]
        if len(members) < 2 or self._suits(length, lengths) or length > lengths[-1]:
            return None
        return members[-1] if self._suits(length, lengths[:-1]) else None

    def _suits(self, length: int, others: Tokens[int]) -> bool:
        count, held = len(others) + 1, length + sum(others)
        padding = count * max(length, *others, 0) - held
        return padding <= min(WASTE * held, self._spare) + count * GROWTH

    def _trim(self, room: int) -> None:
        """Free the slots beyond ``room``, and the places after the longest sequence."""
        for layer in self._keys:
            layer.places.trim(room, self._longest() + 1)
        self._changed()

    def _changed(self) -> None:
        """Note that buffers have another size than before."""
        self._reach, self._nbytes = 0, None

    def _reserve(self, end: int) -> None:
        """Have places for the positions before ``end`` in every layer."""
        if end > self._reach:
            reach = -(-end // GROWTH) * GROWTH
            for layer in self._keys:
                layer.places.reserve(0, reach)
            self._changed()
            self._reach = reach

    def _longest(self) -> int:
        return max((member.length for member in self._members), default=0)

    def join(self, alone: Alone) -> Slot:
        """Copy a sequence with at least one token into a slot of its own."""
        caches = list(leaves(alone.caches))

        def put(index: int) -> None:
            for slot, layer in zip(self.layers, caches, strict=True):
                slot.put(index, layer, self._room)

        return self._take_in(alone.length, put)

    def fill(self, columns: Tokens[Tokens[Runs]], others: Tokens[LayerCache], length: int) -> Slot:
        """Write ``length`` tokens into a slot of their own: pieces that follow one another for each
        layer that can be cut, and caches of one sequence for the others."""

        def put(index: int) -> None:
            pieces, caches = iter(columns), iter(others)
            for layer in self.layers:
                if not _is_cut(layer):
                    layer.put(index, next(caches), self._room)
                elif column := [piece for piece in next(pieces) if piece]:
                    layer.places.put_all(index, column, self._room)

        return self._take_in(length, put)

    def _take_in(self, length: int, put: Callable[[int], None]) -> Slot:
        """A new slot, into which ``put`` writes a sequence."""
        self._changed()
        index, room = len(self._members), _rooms(len(self._members) + 1)
        if room > self._room:
            if self._members:  # copy no more places than needed into the larger buffers
                self._trim(self._room)
            self._room = room
        try:
            put(index)
        except BaseException:  # some layers may hold it already
            self._drop_behind(index)
            raise
        member = Slot(self, index, length)
        member.checkpoint()
        self._members.append(member)
        self._undoable = frozenset()
        return member

    def leave(self, member: Slot) -> None:
        """Free a slot, if it is still in use; the last sequence takes its place."""
        if member not in self._members:
            return
        index, last = member.index, len(self._members) - 1
        mover = self._members.pop()
        if index != last:
            for layer in self.layers:
                layer.move(last, index, mover.length)
            mover.index = index
            self._members[index] = mover
        self._drop_behind(len(self._members))
        self._undoable = frozenset()
        if not self._members:
            return
        room = _rooms(len(self._members))
        # Only if it frees half, so that leaving and joining by turns copies nothing.
        if 2 * room <= self._room:
            self._room = room
            self._trim(room)
        elif any(layer.places.count > 2 * (self._longest() + GROWTH) for layer in self._keys):
            self._trim(self._room)

    def clear(self) -> None:
        """Free all slots, whatever is in them."""
        self._members.clear()
        self._undoable = frozenset()
        self._drop_behind(0)

    def _drop_behind(self, count: int) -> None:
        """Drop what the layers hold after the first ``count`` slots; all if no slot is in use."""
        self._changed()
        for state in self.states:
            if state.slots > count:
                state.keep(count)
        if not self._members:
            self._room = 0
            for layer in self.layers:
                layer.clear()

    def copy_of(self, member: Slot) -> Alone:
        """The sequence of a slot in caches of its own."""
        caches = self.make()
        if member.length:
            for layer, leaf in zip(self.layers, leaves(caches), strict=True):
                layer.get(member.index, member.length, leaf)
        return Alone(self.make, caches, member.length)

    def run(self, model: Model, tokens: mx.array, lengths: Tokens[int], first: int = 0) -> mx.array:
        """Run the next ``lengths`` tokens of the slots from ``first`` on: logits [n, m, vocab],
        lazy.

        The rows of ``tokens`` [n, most] are padded at their ends. Nothing is gathered: a slot
        between others takes part with a length of 0, and keeps what it holds. With recurrent
        layers all other lengths must be the same, as their states would take in the padding. The
        tokens run in pieces of ``SLACK``, the first of which may be shorter, and of which there may
        be several only for one slot; m is the length of the last piece.
        """
        members, most = self._members[first : first + len(lengths)], tokens.shape[1]
        runs = [length > 0 for length in lengths]
        for end in range((most - 1) % SLACK + 1, most + 1, SLACK):
            piece = tokens[:, max(0, end - SLACK) : end]
            positions, count = [member.length for member in members], piece.shape[1]
            step = Pass(first, positions, runs, held=len(self), count=count)
            logits = self._through(model, piece, step)
            for member in members:
                member.advance(count)  # in a ring, the padding has overwritten older keys
        undoable = [first + i for i, length in enumerate(lengths) if length == most == 1]
        self._undoable = frozenset(undoable)
        for member, length in zip(members, lengths, strict=True):
            member.length -= most - length
            if length:
                member.checkpoint()
        return logits

    def undo(self, index: int, count: int) -> bool:
        """Undo the last ``count`` tokens of a slot in the recurrent layers; false if impossible.

        In both cases, nothing of the slot's last pass can be undone afterwards.
        """
        possible = count == 1 and index in self._undoable
        self._undoable -= {index}
        if possible:
            for state in self.states:
                state.undo(index)
        return possible

    def check_integrity(self) -> None:
        """Assert the invariant; for tests."""
        assert [member.index for member in self._members] == list(range(len(self._members)))
        assert all(layer.slots == len(self._members) for layer in self.states)
        assert self.nbytes == sum(array.nbytes for array in self.arrays())
        assert not self._members or all(
            layer.places.slots >= len(self._members) for layer in self._keys
        )

    def _through(self, model: Model, tokens: mx.array, step: Pass) -> mx.array:
        try:
            self._reserve(step.end)
            for layer in self._keys:
                layer.step, layer.offset = step, step.offset
            for state in self.states:
                state.begin(step)
            logits = model(tokens, cache=self.caches)
            for layer in self._keys:
                layer.step = None
            for state in self.states:
                state.end()
            if self._resized:
                self._nbytes = None
        except BaseException:
            self._undoable = frozenset()
            for member, runs in zip(self._members[step.slots], step.runs, strict=True):
                if runs:
                    member.spoil()
            raise
        return logits


def _is_cut(layer: SlotLayer) -> bool:
    """Whether a layer holds its tokens side by side, so any run of them can be cut out."""
    return isinstance(layer, SlotKeys) and layer.window is None


def _rooms(count: int) -> int:
    """How many slots to have for ``count`` sequences: a few more, as a change copies them all."""
    step = FEW if count <= 4 * FEW else 2 * FEW
    return -(-count // step) * step
