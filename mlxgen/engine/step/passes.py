"""Forward passes for handles, alone and in slots.

Owns in which passes pending, drawn and drafted tokens go through the model. Must never sample, nor
know when a pass is due: the loop does. Invariant: a pass leaves in ``handle.ahead`` the logits
after its last pending token, and after every drafted one; nothing is evaluated but the
pieces of a long prompt. What a pass of one handle raises while it is built is its ``Fault``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import mlx.core as mx

from ..kv import KV, Fed
from ..kv.commands import Run
from ..kv.padded import LONGEST, alike, longest_padded
from .cost import Meter
from .fault import Fault
from .handle import Handle, Logits
from .runner import Runner
from .scores import PIECE

SINGLE_PASS = 16  # pending tokens that go through with their logits, in one pass
SHORT_RUN = 4  # pending tokens of a slot up to which runs of several rows share a pass

Row: TypeAlias = tuple[KV, Sequence[Fed]]
"""The next tokens of a cache."""


class Work(NamedTuple):
    """The next ``tokens`` of a handle, with the logits after the last ``wanted`` of them."""

    handle: Handle
    tokens: Sequence[Fed]
    wanted: int = 1

    @classmethod
    def pending(cls, handle: Handle) -> Work:
        """What a handle has to run, and what is drafted after it."""
        drafted = handle.guess.fed if handle.guess is not None else []
        return cls(handle, [*handle.pending, *drafted], 1 + len(drafted))

    def done(self, logits: mx.array, at: int) -> None:
        """They have gone through, and their logits are in the rows from ``at`` on."""
        handle, _, wanted = self
        handle.ahead = Logits(logits, range(at, at + wanted), handle.kv.length - wanted + 1)
        handle.passes += 1


class Passes:
    """See the module. ``runner`` is told what to run, and ``meter`` how much that is."""

    __slots__ = ("longest_padded", "merges", "meter", "runner")

    def __init__(self, runner: Runner, meter: Meter) -> None:
        self.runner = runner
        self.meter = meter
        self.longest_padded = longest_padded(runner.make) if runner.slots is not None else 0
        # Whether short runs go into the common pass. That pads every row to the longest of them,
        # and saves a pass over the weights: worth it where a few tokens cost as much as one.
        self.merges = mx.default_device() != mx.Device(mx.cpu)

    def _note(self, tokens: int, *, is_prompt: bool = False) -> None:
        self.meter.run(self.runner.now(), tokens, is_prompt=is_prompt)

    # ---- prompts ---------------------------------------------------------------------------

    def is_single(self, handle: Handle) -> bool:
        """Whether what a handle outside of the slots has pending goes through with its logits."""
        return len(handle.pending) <= (1 if handle.is_scored else SINGLE_PASS)

    def prefill(self, handle: Handle, count: int) -> None:
        """Run ``count`` pending tokens of a handle outside of the slots, but not the last one."""
        kv, history = handle.kv, handle.history
        if handle.is_scored:
            self._prefill_scored(handle, count)
            return
        piece = kv.align(history)[:-1][:count]
        self._note(len(piece), is_prompt=True)
        try:
            kv.run(piece)
        except Exception as error:
            raise Fault(error, handle) from error
        kv.submit()
        kv.snapshot()

    def prefill_to(self, handle: Handle, tokens: int) -> None:
        """Run so many tokens of a handle's history, in pieces that are evaluated."""
        while handle.kv.length < tokens:
            most = self.runner.piece(handle.kv.length)
            self.prefill(handle, min(most, tokens - handle.kv.length))
            handle.kv.wait()
            self.meter.read(self.runner.now())
            mx.clear_cache()

    def _prefill_scored(self, handle: Handle, count: int) -> None:
        """The same, with the log-probabilities of the tokens that come next; evaluated."""
        kv, scores, history = handle.kv, handle.scores, handle.history
        assert scores is not None
        end = min(len(history) - len(kv.align(history)) + count, len(history) - 1)
        pending = kv.align(history, scores.done - 1)  # if an interrupt came before the scores
        try:
            while kv.length < end:
                piece, start = pending[: min(PIECE, end - kv.length)], kv.length
                self._note(len(piece), is_prompt=True)
                scores.add(start, kv.run(piece)[0])
                kv.wait()
                self.meter.read(self.runner.now())
                kv.snapshot()
                pending = pending[len(piece) :]
        except Exception as error:
            raise Fault(error, handle) from error

    def prefill_together(self, handles: Sequence[Handle]) -> None:
        """Run what handles that hold nothing have pending, but not the last token, in one pass.

        Each has ``longest_padded`` tokens to run at most.
        """
        rows = [(handle.kv, handle.pending[:-1]) for handle in handles]
        self._note(len(rows) * max(len(tokens) for _, tokens in rows), is_prompt=True)
        try:
            self.runner.do(_run(rows))
        except Exception:  # then each in a pass of its own, so that it is known whose it was
            for handle in handles:
                if len(pending := handle.align()) > 1:
                    self.prefill(handle, len(pending) - 1)
            return
        for kv, tokens in rows:
            kv.took(tokens)
            kv.submit()
            kv.snapshot()

    # ---- steps -----------------------------------------------------------------------------

    def run(self, work: Sequence[Work]) -> list[mx.array]:
        """Run tokens of many handles, those in the slots together; their logits, nothing of it
        evaluated."""
        inside: list[Work] = []
        alone: list[Work] = []
        for each in work:
            (alone if each.handle.slot is None else inside).append(each)
        arrays = self._run_in_slots(inside) if inside else []
        return arrays + [self._run_alone(each) for each in alone]

    def _run_alone(self, work: Work) -> mx.array:
        """Run what a handle outside of the slots has pending, a long run in pieces."""
        handle, tokens, count = work
        kv = handle.kv
        if len(tokens) > count and not self.is_single(handle):
            self.prefill_to(handle, len(handle.history) - 1)
            tokens = tokens[-count:]
        if count > 1:
            kv.snapshot(before=count - 1)
        self._note(len(tokens))
        try:
            logits = kv.run(tokens)
        except Exception as error:
            raise Fault(error, handle) from error
        logits = logits[:, -1, :] if count == 1 else logits[0, -count:]
        work.done(logits, 0)
        if count == 1:
            kv.snapshot()
        return logits

    def _run_in_slots(self, work: Sequence[Work]) -> list[mx.array]:
        """A common pass for the last token of each, and what has to go before it or apart.

        What is pending before the last token goes first if it is long; drafts have
        passes of their own if the common one is not to be padded for them.
        """
        slots = self.runner.slots
        assert slots is not None
        merges = self.merges and not slots.recurrent
        first: list[Work] = []
        apart: list[Work] = []
        common: list[Work] = []
        for each in work:
            handle, tokens, count = each
            early = len(tokens) - count
            if early and not (merges and early <= SHORT_RUN):
                first.append(Work(handle, tokens[:early]))
                each = Work(handle, tokens[early:], count)
            (apart if count > 1 and not merges else common).append(each)
        for group in self._groups(first):
            for part in _adjacent(group):
                self._run_group(part)
        for handle, tokens, _ in apart:
            handle.kv.snapshot(before=len(tokens))
        groups = [*self._groups(apart), *([common] if common else [])]
        return [self._run_group(part) for group in groups for part in _adjacent(group)]

    def _groups(self, work: Sequence[Work]) -> list[list[Work]]:
        """Those whose runs are alike enough to go together, in as few groups as possible."""
        slots = self.runner.slots
        groups = []
        left = sorted(work, key=lambda each: len(each.tokens))
        while left:
            group = [left.pop()]
            padded = slots is not None and not slots.recurrent and len(group[0].tokens) <= LONGEST
            while left and padded and alike([len(each.tokens) for each in (*group, left[-1])]):
                group.append(left.pop())
            groups.append(group)
        return groups

    def _run_group(self, group: list[Work]) -> mx.array:
        """Run what is next for several slots, in their order, side by side in one pass."""
        longest, first = max([len(each.tokens) for each in group]), _index(group[0])
        self._note((_index(group[-1]) - first + 1) * longest)
        logits: mx.array = self.runner.do(_run([(each.handle.kv, each.tokens) for each in group]))
        width = logits.shape[1]
        logits = logits.reshape(-1, logits.shape[-1])
        for each in group:
            each.handle.kv.took(each.tokens)
            padding = longest - len(each.tokens)
            each.done(logits, (_index(each) - first + 1) * width - padding - each.wanted)
        return logits


def _run(rows: Sequence[Row]) -> Run:
    return Run(tuple([(kv.number, tuple(tokens)) for kv, tokens in rows]))


def _adjacent(group: list[Work]) -> list[list[Work]]:
    """A group in the order of its slots; without those between them, if these would take part in
    its pass for too little."""
    group.sort(key=_index)
    lengths = {_index(each): len(each.tokens) for each in group}
    if alike([lengths.get(index, 0) for index in range(min(lengths), max(lengths) + 1)]):
        return [group]
    parts: list[list[Work]] = []
    for each in group:
        if parts and _index(parts[-1][-1]) == _index(each) - 1:
            parts[-1].append(each)
        else:
            parts.append([each])
    return parts


def _index(work: Work) -> int:
    slot = work.handle.kv.slot
    assert slot is not None
    return slot.index
