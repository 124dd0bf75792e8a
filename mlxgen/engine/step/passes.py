"""Forward passes for handles, one or many.

Owns which pass the pending, drawn and drafted tokens go through. Must never sample, nor know when a
pass is due: the loop does. Invariant: a pass leaves in ``handle.ahead`` the logits after the last
pending token and after every drafted one, or nothing if it has not reached that token; nothing is
evaluated but the pieces of a long run.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import NamedTuple

import mlx.core as mx

from ..drafts.drafts import WIDEST
from ..kv.commands import Run
from ..kv.held import Fed
from ..kv.runner import Runner
from ..kv.slots import Group
from .handle import PIECE, Handle, Logits
from .pace import Clock

FEW = 4  # rows up to which a pass takes hardly longer for several tokens of each than for one
PADDING = 16  # padding tokens in unused slots that take no longer than another pass


class Work(NamedTuple):
    """The next ``tokens`` of a handle, and after how many of the last ones logits are ``wanted``.

    None are wanted of a run that goes on in the next pass.
    """

    handle: Handle
    tokens: Sequence[Fed]
    wanted: int = 1

    @classmethod
    def pending(cls, handle: Handle) -> Work:
        """The pending tokens of a handle, and the drafted ones after them."""
        drafted = handle.guess.fed if handle.guess is not None else []
        return cls(handle, [*handle.pending, *drafted], 1 + len(drafted))


class Passes:
    """See the module. ``runner`` gets the commands, and ``clock`` notes their size."""

    __slots__ = ("clock", "runner")

    def __init__(self, runner: Runner, clock: Clock) -> None:
        self.runner = runner
        self.clock = clock

    # ---- prompts ---------------------------------------------------------------------------

    def prefill(self, handles: Sequence[Handle], count: int) -> None:
        """Run up to ``count`` pending tokens of each handle side by side, but not the last one,
        which runs with those of other handles.

        A prompt whose tokens are scored runs by itself, ``PIECE`` tokens at most.
        """
        work = []
        for handle in handles:
            pending = handle.kv.align(handle.history)
            piece = pending[: min(count, len(pending) - 1, PIECE if handle.is_scored else count)]
            work.append(Work(handle, piece, len(piece) if handle.is_scored else 0))
        for part in self._parts(work):
            handle, _, wanted = part[0]
            held = handle.kv.length
            logits = self._run(part, of_prompt=True)
            if wanted and handle.scores is not None:
                handle.scores.add(held, logits)

    def prefill_to(self, handle: Handle, tokens: int) -> None:
        """Run a history's first ``tokens`` tokens in pieces, each evaluated before the next."""
        kv, first = handle.kv, handle.kv.length
        while (held := kv.length) < tokens:
            if held > first:
                kv.wait()
                self.clock.wait()
                mx.clear_cache()
            self.prefill([handle], min(self.runner.piece(held), tokens - held))

    # ---- steps -----------------------------------------------------------------------------

    def run(self, work: Sequence[Work]) -> list[mx.array]:
        """Run tokens of many handles in as few passes as possible; returns their logits, not
        evaluated.

        Long runs are cut, and go on in the next pass. Drafts run whole.
        """
        if not work:
            return []
        begun: list[Work] = []
        for each in work:
            handle, tokens, wanted = each
            if len(tokens) > 1:
                more = len(tokens) - wanted  # tokens whose logits nobody wants
                alone = len(work) == 1 or not self.runner.slots.batches
                if alone and (more >= WIDEST or (more and handle.is_scored)):
                    self.prefill_to(handle, len(handle.history) - 1)
                    each = Work(handle, tokens[-wanted:], wanted)
                elif not alone and wanted == 1 and len(tokens) > (width := width_of(len(work))):
                    each = Work(handle, tokens[:width], 0)
            begun.append(each)
        if len(work) == 1:
            return [self._run(begun)]
        arrays = []
        for part in self._parts(begun):
            arrays.append(self._run(part))
        return arrays

    def _parts(self, work: list[Work]) -> list[list[Work]]:
        """The work that shares a pass, in the order of the slots, padded to the longest run.

        Recurrent states would take in that padding: there all runs of a pass are equally long. Nor
        do rows share a pass if the unused slots between them would be much padding.
        """
        work.sort(key=_PLACE)
        longest = max([len(each.tokens) for each in work])
        parts: list[list[Work]] = []
        latest: dict[tuple[Group, int], tuple[list[Work], int]] = {}  # and their last slots
        for each in work:
            slot = each.handle.kv.slot
            kind = slot.group, len(each.tokens) if slot.group.states else 0
            part, last = latest.get(kind, ([], slot.index))
            if part and (slot.index - last - 1) * longest > PADDING:
                part = []
            if not part:
                parts.append(part)
            part.append(each)
            latest[kind] = part, slot.index
        return parts

    def _run(self, work: Sequence[Work], *, of_prompt: bool = False) -> mx.array:
        """One pass over the next tokens of these, in the order of their slots; gives its logits."""
        rows: list[tuple[int, tuple[Fed, ...]]] = []
        counts: list[int] = []
        longest, told = 1, False
        for handle, tokens, wanted in work:
            rows.append((handle.kv.number, tuple(tokens)))
            counts.append(wanted)
            longest, told = max(longest, len(tokens)), told or handle.tells_states
        clock, runner = self.clock, self.runner
        first, last = work[0].handle.kv.slot, work[-1].handle.kv.slot
        span = last.index - first.index + 1
        passes, prompts = clock.submitted
        clock.submitted = passes + 1, prompts + of_prompt * span * longest
        if runner.feed is not None and longest > 1 and _shows(work):
            clock.skip()  # the vision tower takes its own time
        if clock.timeline is not None:
            new = all(handle.kv.length < handle.request.base for handle, _, _ in work)
            clock.timeline.run(len(work) * longest, new=new)
        states = runner.states = [] if told else None
        logits: mx.array = runner.do(Run(tuple(rows), tuple(counts)))
        runner.states = None
        at = 0
        for handle, tokens, wanted in work:
            kv = handle.kv
            kv.tokens += tokens
            if wanted and not of_prompt:
                places = range(at, at + wanted)
                handle.ahead = Logits(logits, places, kv.slot.length - wanted + 1)
            at += wanted
            handle.passes += 1
        if states:
            _tell(work, states[0])
        return logits


def width_of(rows: int) -> int:
    """The most tokens, apart from drafts, that each of ``rows`` rows runs in a pass: with more than
    ``FEW`` rows, a pass is bound by its tokens, and a run goes through one by one."""
    return WIDEST // rows if rows <= FEW else 1


_PLACE = attrgetter("handle.kv.slot.group.number", "handle.kv.slot.index")  # of some work


def _shows(work: Sequence[Work]) -> bool:
    """Whether there are patches of images among the tokens."""
    return any(isinstance(token, int) and token < 0 for each in work for token in each.tokens)


def _tell(work: Sequence[Work], states: mx.array) -> None:
    """Give the states [slots, longest, width] of a pass to the drafters that read them."""
    first = work[0].handle.kv.slot.index
    for handle, tokens, _ in work:
        if handle.tells_states:
            slot = handle.kv.slot
            own = states[slot.index - first, : len(tokens)]
            for drafter in handle.drafts.drafters:
                if drafter.wants_states:
                    drafter.ran(handle.history, slot.length - len(tokens), tokens, own)
