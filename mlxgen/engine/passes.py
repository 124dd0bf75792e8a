"""Forward passes for seats, alone and in slots.

Owns in which passes pending and drafted tokens go through the model. Must never sample, nor
know when a pass is due: the loop does. Invariant: a pass leaves in ``seat.ahead`` the logits
behind its last pending token, and behind every drafted one; nothing is evaluated but the
pieces of a long prompt. What a pass of one seat raises while it is built is its ``Fault``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from ..tokens import Token
from .fault import Fault
from .guess import Guess
from .kv import KV, PREFILL_STEP, Model
from .padded import LONGEST, alike, longest_padded, run_padded
from .scores import PIECE
from .seat import Seat
from .slots import SlotKV, Slots

SINGLE_PASS = 16  # pending tokens that go through with their logits, in one pass
SHORT_RUN = 4  # pending tokens of a slot up to which runs of several rows share a pass


class Passes:
    """The model, and the ``slots`` for what goes through it together, if it can."""

    __slots__ = ("longest_padded", "merges", "model", "slots")

    def __init__(self, model: Model, slots: Slots | None) -> None:
        self.model = model
        self.slots = slots
        self.longest_padded = longest_padded(slots.make) if slots is not None else 0
        # Whether short runs go into the common pass. That copies the keys of every row, and
        # saves a pass over the weights: worth it where memory is fast, not on a CPU.
        self.merges = mx.default_device() != mx.Device(mx.cpu)

    def prefill(self, seat: Seat, count: int) -> list[Any]:
        """Run ``count`` pending tokens of a seat outside of the slots, but not the last one.

        Returns what is ready when that is done; it is submitted.
        """
        if seat.is_scored:
            return self._prefill_scored(seat, count)
        kv = seat.kv
        assert isinstance(kv, KV)
        piece = seat.pending[:-1][:count]
        try:
            kv.forward(self.model, mx.array([piece]))
        except Exception as error:
            raise Fault(error, seat) from error
        arrays = kv.arrays()
        mx.async_eval(arrays)
        kv.checkpoint()
        return arrays

    def _prefill_scored(self, seat: Seat, count: int) -> list[Any]:
        """The same, with the log-probabilities of the tokens that come next; evaluated."""
        kv, scores = seat.kv, seat.scores
        assert isinstance(kv, KV) and scores is not None
        end = kv.length + min(count, len(seat.pending) - 1)
        kv.rewind(scores.done - 1)  # where an interrupt came before the scores
        try:
            while kv.length < end:
                piece = seat.pending[:-1][: min(PIECE, end - kv.length)]
                start = kv.length
                scores.add(start, kv.forward(self.model, mx.array([piece]))[0])
                mx.eval(kv.arrays())
                kv.checkpoint()
        except Exception as error:
            raise Fault(error, seat) from error
        return kv.arrays()

    def prefill_together(self, seats: Sequence[Seat]) -> None:
        """Run what seats that hold nothing have pending, but not the last token, in one pass.

        Each has ``longest_padded`` tokens to run at most.
        """
        assert self.slots is not None
        kvs = [seat.kv for seat in seats if isinstance(seat.kv, KV)]
        try:
            run_padded(self.model, self.slots.make, [seat.pending[:-1] for seat in seats], kvs)
        except Exception:  # then each in a pass of its own, so that it is known whose it was
            for seat in seats:
                if len(seat.pending) > 1:
                    self.prefill(seat, len(seat.pending) - 1)
            return
        mx.async_eval([kv.arrays() for kv in kvs])
        for kv in kvs:
            kv.checkpoint()

    def run_in_slots(
        self, seats: list[Seat], drawn: mx.array | None, arrays: list[mx.array]
    ) -> None:
        """One common pass: ``drawn`` [n] for the first n seats, the others' last pending token.

        What these have pending before it goes first, and drafts go with it.
        """
        slots = self.slots
        assert slots is not None
        known = drawn.shape[0] if drawn is not None else 0
        merged: list[tuple[Token, SlotKV]] = []
        runs: list[tuple[mx.array, SlotKV]] = []
        guesses: list[tuple[mx.array, SlotKV]] = []
        guessing: list[tuple[Seat, Guess]] = []
        common: list[Seat] = seats[:known]
        last: list[Token] = []
        for seat in seats[known:]:
            run, slot = seat.pending, seat.slot
            assert slot is not None
            if self.merges and not slots.recurrent and len(run) <= SHORT_RUN + 1:
                merged += [(token, slot) for token in run[:-1]]
            elif len(run) > 1:
                runs.append((mx.array(run[:-1], mx.int32), slot))
                seat.passes += 1
            if seat.guess is not None and (slots.recurrent or not self.merges):
                guesses.append((_joined(run[-1:], seat.guess), slot))
                guessing.append((seat, seat.guess))
            else:
                common.append(seat)
                last.append(run[-1])
        self._run_rows(slots, runs)
        for tokens, slot in guesses:
            slot.keep_place(tokens.size)
        for (seat, guess), (logits, at) in zip(
            guessing, self._run_rows(slots, guesses), strict=True
        ):
            seat.ahead = logits, range(at, at + guess.count + 1)
            seat.passes += 1
            arrays.append(logits)
        if not common:
            return
        tokens = mx.array(last, mx.int32) if drawn is None else drawn
        if drawn is not None and last:
            tokens = mx.concatenate([drawn, mx.array(last, drawn.dtype)])
        late = [(s.guess, s.slot) for s in common[known:] if s.guess is not None and s.slot]
        order = sorted(range(len(common)), key=lambda i: _index(common[i]))
        if order != list(range(len(common))):
            tokens, common = tokens[mx.array(order)], [common[i] for i in order]
        members = [slot for _, slot in merged]
        members += [seat.slot for seat in common if seat.slot is not None]
        drafted = [guess.array[:, None] for guess, _ in late]
        tokens = mx.concatenate([*_column_of(merged), tokens[:, None], *drafted])
        behind = len(members)
        places: dict[SlotKV, range] = {}
        for guess, slot in late:
            places[slot] = range(behind, behind + guess.count)
            members += [slot] * guess.count
            behind += guess.count
        logits = slots.forward(self.model, tokens, members)
        for at, seat in enumerate(common, start=len(merged)):
            assert seat.slot is not None
            seat.ahead = logits, (at, *places.get(seat.slot, ()))
            seat.passes += 1
        arrays.append(logits)

    def _run_rows(
        self, slots: Slots, rows: Sequence[tuple[mx.array, SlotKV]]
    ) -> list[tuple[mx.array, int]]:
        """Run the next tokens [n] of several slots, in as few passes as their lengths allow.

        For each, the logits [.., vocab] of its pass, and the index of its first ones.
        """
        found: dict[SlotKV, tuple[mx.array, int]] = {}
        left = sorted(rows, key=lambda row: row[0].size)
        while left:
            group = [left.pop()]
            most = group[0][0].size
            padded = not slots.recurrent and most <= LONGEST
            while left and padded and alike([row.size for row, _ in (*group, left[-1])]):
                group.append(left.pop())
            if len(group) == 1:
                tokens, slot = group[0]
                found[slot] = slots.run(self.model, tokens[None], slot)[0], 0
                continue
            group.sort(key=lambda row: row[1].index)  # so that nothing may have to be gathered
            together = mx.stack([mx.pad(row, (0, most - row.size)) for row, _ in group])
            members = [slot for _, slot in group]
            logits = slots.run_side_by_side(
                self.model, together, [row.size for row, _ in group], members
            )
            flat = logits.reshape(-1, logits.shape[-1])
            found.update((slot, (flat, i * most)) for i, slot in enumerate(members))
        return [found[slot] for _, slot in rows]

    def run_pending(self, seat: Seat, arrays: list[mx.array]) -> None:
        """Run what a seat outside of the slots has pending."""
        pending = seat.pending
        if len(pending) > (1 if seat.is_scored else SINGLE_PASS):
            for _ in range(0, len(pending) - 1, PREFILL_STEP):
                mx.eval(self.prefill(seat, PREFILL_STEP))
                mx.clear_cache()
            pending = pending[-1:]
        guess = seat.guess
        count = 1
        tokens = mx.array([pending])
        if guess is not None:
            seat.kv.keep_place(guess.count)
            count, tokens = guess.count + 1, _joined(pending, guess)[None]
        seat.ahead = self.run_alone(seat, tokens, count), range(count)
        arrays.append(seat.ahead[0])

    def run_alone(self, seat: Seat, tokens: mx.array, count: int = 1) -> mx.array:
        """Run tokens [1, n] in a seat's own caches; the logits [count, vocab] behind the last."""
        kv = seat.kv
        assert isinstance(kv, KV)
        try:
            logits = kv.forward(self.model, tokens)
        except Exception as error:
            raise Fault(error, seat) from error
        logits = logits[:, -1, :] if count == 1 else logits[0, -count:]
        seat.passes += 1
        if count == 1:
            kv.checkpoint()
        return logits


def _index(seat: Seat) -> int:
    assert seat.slot is not None
    return seat.slot.index


def _column(run: Sequence[tuple[Token, SlotKV]]) -> mx.array:
    return mx.array([[token] for token, _ in run], mx.int32)


def _column_of(run: Sequence[tuple[Token, SlotKV]]) -> list[mx.array]:
    return [_column(run)] if run else []


def _joined(pending: list[Token], guess: Guess) -> mx.array:
    """Known tokens with drafted ones behind them [n]."""
    return mx.concatenate([mx.array(pending, mx.int32), guess.array])
