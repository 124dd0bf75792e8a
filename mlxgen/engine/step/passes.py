"""Forward passes for handles, alone and in slots.

Owns in which passes pending, drawn and drafted tokens go through the model. Must never sample, nor
know when a pass is due: the loop does. Invariant: a pass leaves in ``handle.ahead`` the logits
after its last pending token, and after every drafted one, but nothing if it is not come to that
token; nothing is evaluated but the pieces of a long run.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import NamedTuple

import mlx.core as mx

from ..kv import PREFILL_STEP, Fed
from ..kv.commands import Run
from ..kv.places import SLACK
from ..kv.slots import Group
from .handle import PIECE, Handle, Logits
from .pace import Clock
from .runner import Runner

FEW = 4  # rows up to which several tokens of each take hardly longer in one pass than in two
WIDEST = 32  # tokens of a pass that takes hardly longer than one of a single token
PADDING = 16  # tokens that take no longer than another pass, which reads the weights again


class Work(NamedTuple):
    """The next ``tokens`` of a handle, with the logits after the last ``wanted`` of them.

    None are wanted of a run that is cut.
    """

    handle: Handle
    tokens: Sequence[Fed]
    wanted: int = 1

    @classmethod
    def pending(cls, handle: Handle) -> Work:
        """What a handle has to run, and what is drafted after it."""
        drafted = handle.guess.fed if handle.guess is not None else []
        return cls(handle, [*handle.pending, *drafted], 1 + len(drafted))

    def cut(self, width: int) -> Work:
        """The first ``width`` tokens; all if there are drafts among them."""
        if self.wanted > 1 or len(self.tokens) <= width:
            return self
        return Work(self.handle, self.tokens[:width], 0)

    def done(self, logits: mx.array, at: int) -> None:
        """They have gone through, and their logits are in the rows from ``at`` on."""
        handle, _, wanted = self
        if wanted:
            handle.ahead = Logits(logits, range(at, at + wanted), handle.kv.length - wanted + 1)
        handle.passes += 1


_index = attrgetter("handle.kv.slot.index")  # of some work in the slots


class Passes:
    """See the module. ``runner`` is told what to run, and ``clock`` how much that is."""

    __slots__ = ("clock", "longest_padded", "runner")

    def __init__(self, runner: Runner, clock: Clock) -> None:
        self.runner = runner
        self.clock = clock
        self.longest_padded = 0  # tokens of a prompt that may share a pass with others
        if runner.slots is not None and not runner.slots.recurrent:
            self.longest_padded = PREFILL_STEP if runner.slots.window is None else SLACK

    # ---- prompts ---------------------------------------------------------------------------

    def due(self, handle: Handle) -> int:
        """How many of its pending tokens a handle runs before others wait for it: all of them; but
        the last one goes with the others if it is the only one, if those before it are scored, and
        if the cache may not be able to go back there."""
        count, kv = len(handle.pending), handle.kv
        apart = count == 1 or handle.is_scored or kv.store.needs_snapshots
        return max(0, count - apart)

    def prefill(self, handle: Handle, count: int) -> None:
        """Run ``count`` pending tokens of a handle by itself, with the logits after the last one
        of all; if the tokens of its prompt are scored, ``PIECE`` at most."""
        kv, scores = handle.kv, handle.scores if handle.is_scored else None
        pending, held = kv.align(handle.history), kv.length
        piece = pending[: count if scores is None else min(count, PIECE)]
        wanted = int(len(piece) == len(pending)) if scores is None else len(piece)
        self.clock.run(len(piece), of_prompt=True)
        if self.runner.feed is not None:
            self._look(piece)
        logits = self._do([Work(handle, piece, wanted)])
        if scores is not None:
            scores.add(held, logits)
        kv.submit()
        if wanted and scores is None:
            mx.async_eval(logits)
            Work(handle, piece).done(logits, 0)
            handle.arrive()

    def follow(self, handle: Handle, count: int) -> None:
        """Have the model that drafts for a handle run ``count`` tokens of what it is behind."""
        self.clock.run(count, of_prompt=True)
        handle.drafts.follow(handle.history, count)

    def prefill_to(self, handle: Handle, tokens: int) -> None:
        """Run so many tokens of a handle's history, in pieces that are evaluated."""
        while handle.kv.length < tokens:
            most = self.runner.piece(handle.kv.length)
            self.prefill(handle, min(most, tokens - handle.kv.length))
            handle.kv.wait()
            self.clock.wait()
            mx.clear_cache()

    def prefill_together(self, handles: Sequence[Handle]) -> None:
        """Run what is ``due`` of handles that hold nothing in one pass, without logits: the last
        token of each goes with the others.

        Each has ``longest_padded`` tokens to run at most.
        """
        dues = [min(self.due(handle), len(handle.pending) - 1) for handle in handles]
        pairs = zip(handles, dues, strict=True)
        work = [Work(handle, handle.pending[:due], 0) for handle, due in pairs]
        for group in _by_group(work):
            for part in _parts(group):
                self.clock.run(_size(part), of_prompt=True)
                if self.runner.feed is not None:
                    for each in part:
                        self._look(each.tokens)
                _done(part, self._do(part))
                part[0].handle.kv.submit()

    def _look(self, tokens: Sequence[Fed]) -> None:
        """Learn nothing from a pass with images: the vision tower takes its own time."""
        if any(isinstance(token, int) and token < 0 for token in tokens):
            self.clock.skip()

    # ---- steps -----------------------------------------------------------------------------

    def run(self, work: Sequence[Work]) -> list[mx.array]:
        """Run tokens of many handles, those in the slots together; their logits, nothing of it
        evaluated."""
        if len(work) == 1 and work[0].handle.kv.slot is None:
            return [self._run_alone(work[0])]
        arrays: list[mx.array] = []
        for group in _by_group(work):
            if group[0].handle.kv.slot is None:
                arrays += [self._run_alone(each) for each in group]
            else:
                arrays += self._run_in_slots(group)
        return arrays

    def _run_alone(self, work: Work) -> mx.array:
        """Run what a handle outside of the slots has pending, a long run in pieces."""
        handle, tokens, count = work
        kv = handle.kv
        if len(tokens) > count:
            held = kv.length
            self.prefill_to(handle, self._last_piece(handle))
            tokens = tokens[kv.length - held :]
        if count > 1:
            kv.snapshot(before=count - 1)
        self.clock.run(len(tokens))
        if self.runner.feed is not None:
            self._look(handle.pending)
        logits = self._do([Work(handle, tokens, count)])
        work.done(logits, 0)
        return logits

    def _last_piece(self, handle: Handle) -> int:
        """From where on a handle outside of the slots runs the rest at once."""
        end, held = len(handle.history), handle.kv.length
        if handle.is_scored or (handle.kv.store.needs_snapshots and end - held > PIECE):
            return end - 1
        while end - held > (most := self.runner.piece(held)):
            held += most
        return held

    def _run_in_slots(self, work: Sequence[Work]) -> list[mx.array]:
        """Passes for what is next in slots of one group, as few as it takes without much padding.

        Long runs are cut, and go on in the next pass: beside more than a ``FEW`` rows, a pass is
        bound by its tokens, and a run goes through one by one. Drafts are run whole.
        """
        groups, longest = [list(work)], 0
        for handle, tokens, wanted in work:
            longest = max(longest, len(tokens))
            if wanted > 1:
                handle.kv.snapshot(before=len(tokens))
        if longest > 1:
            width = WIDEST // len(work) if len(work) <= FEW else 1
            groups = self._groups([each.cut(width) for each in work])
        arrays: list[mx.array] = []
        for group in groups:
            for part in _parts(group):
                arrays.append(self._run_group(part))
        return arrays

    def _groups(self, work: Sequence[Work]) -> list[list[Work]]:
        """Those that share a pass, padded to the longest, if that is little for each further one.

        Recurrent states would take in the padding: there all runs of a pass are equally long.
        """
        slots = self.runner.slots
        by_length: dict[int, list[Work]] = {}
        for each in work:
            by_length.setdefault(len(each.tokens), []).append(each)
        groups: list[list[Work]] = []
        before = 0  # the longest run of the last group
        for length in sorted(by_length):
            padding = (length - before) * len(groups[-1]) if groups else 0
            if groups and slots is not None and not slots.recurrent and padding <= PADDING:
                groups[-1] += by_length[length]
            else:
                groups.append(by_length[length])
            before = length
        return groups

    def _run_group(self, group: list[Work]) -> mx.array:
        """Run what is next for several slots, in their order, side by side in one pass."""
        self.clock.run(_size(group))
        logits = self._do(group)
        _done(group, logits)
        return logits

    def _do(self, work: Sequence[Work]) -> mx.array:
        """One pass, whose states go to those who draft from them."""
        rows: list[tuple[int, tuple[Fed, ...]]] = []
        counts: list[int] = []
        told: list[Work] = []
        for each in work:
            handle, tokens, wanted = each
            rows.append((handle.kv.number, tuple(tokens)))
            counts.append(wanted)
            if handle.tells_states:
                told.append(each)
        if self.clock.timeline is not None:
            longest = max(len(tokens) for _, tokens, _ in work)
            new = all(handle.kv.length < handle.request.base for handle, _, _ in work)
            self.clock.timeline.run(len(work) * longest, new=new)
        states = self.runner.states = [] if told else None
        logits: mx.array = self.runner.do(Run(tuple(rows), tuple(counts)))
        self.runner.states = None
        for handle, tokens, _ in work:
            handle.kv.took(tokens)
        if states:
            all_of = states[0] if len(states) == 1 else mx.concatenate(states, axis=1)
            for each in told:
                handle, tokens, _ = each
                slot = handle.kv.slot
                row = work.index(each) if slot is None else slot.index - _index(work[0])
                start = handle.kv.length - len(tokens)
                handle.drafts.ran(handle.history, start, tokens, all_of[row, : len(tokens)])
        return logits


def _by_group(work: Sequence[Work]) -> list[list[Work]]:
    """Apart by the groups of their slots."""
    groups: dict[Group | None, list[Work]] = {}
    for each in work:
        slot = each.handle.kv.slot
        groups.setdefault(None if slot is None else slot.group, []).append(each)
    return list(groups.values())


def _parts(group: list[Work]) -> list[list[Work]]:
    """A group in the order of its slots; apart where those between them would be much padding."""
    group.sort(key=_index)
    if _span(group) == len(group):
        return [group]
    width = max([len(each.tokens) for each in group])
    parts = [[group[0]]]
    for each in group[1:]:
        gap = _index(each) - _index(parts[-1][-1]) - 1
        if gap * width <= PADDING:
            parts[-1].append(each)
        else:
            parts.append([each])
    return parts


def _done(work: Sequence[Work], logits: mx.array) -> None:
    """They have gone through in one pass, with these logits."""
    at = 0
    for each in work:
        each.done(logits, at)
        at += each.wanted


def _size(group: Sequence[Work]) -> int:
    """How many tokens a pass has, padding included; the group is in the order of its slots."""
    return _span(group) * max([len(each.tokens) for each in group])


def _span(work: Sequence[Work]) -> int:
    """How many slots there are from the first to the last of these, which are in their order."""
    span: int = _index(work[-1]) - _index(work[0]) + 1
    return span
