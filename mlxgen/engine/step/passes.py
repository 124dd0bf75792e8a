"""Forward passes for handles, alone and in slots.

Owns in which passes pending, drawn and drafted tokens go through the model. Must never sample, nor
know when a pass is due: the loop does. Invariant: a pass leaves in ``handle.ahead`` the logits
after its last pending token, and after every drafted one, but nothing if it is not come to that
token; nothing is evaluated but the pieces of a long run. What a pass of one handle raises
while it is built is its ``Fault``.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple, TypeAlias

import mlx.core as mx

from ...tokens import Token
from ..kv import KV, Fed
from ..kv.commands import Run
from ..kv.padded import longest_padded
from ..kv.slot_caches import SLACK
from .cost import Meter
from .fault import Fault
from .handle import Handle, Logits
from .runner import Runner
from .scores import PIECE

LEAST = 1 / 16  # of a pass that takes it without its logits

Row: TypeAlias = tuple[KV, Sequence[Fed]]
"""The next tokens of a cache."""


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

    def rest(self) -> Work:
        """What is left if all but the last token of a run went ahead."""
        return self if self.wanted > 1 else Work(self.handle, self.tokens[-1:])

    def done(self, logits: mx.array, at: int) -> None:
        """They have gone through, and their logits are in the rows from ``at`` on."""
        handle, _, wanted = self
        if wanted:
            handle.ahead = Logits(logits, range(at, at + wanted), handle.kv.length - wanted + 1)
        handle.passes += 1


class Passes:
    """See the module. ``runner`` is told what to run, and ``meter`` how much that is."""

    __slots__ = ("_bare", "longest_padded", "meter", "runner")

    def __init__(self, runner: Runner, meter: Meter) -> None:
        self._bare = max(LEAST, 1.0 - runner.head)  # of a pass without logits
        self.runner = runner
        self.meter = meter
        self.longest_padded = longest_padded(runner.make) if runner.slots is not None else 0

    # ---- prompts ---------------------------------------------------------------------------

    def is_single(self, handle: Handle, after: int = 0) -> bool:
        """Whether what a handle outside of the slots has pending, ``after`` so many tokens of it,
        goes through with its logits."""
        count, cost = len(handle.pending) - after, self.meter.cost
        if count == 1 or handle.is_scored:
            return count == 1
        # Apart, the last token takes a pass, and the logits after the others are spared
        apart = self._bare * cost.of(count - 1) + cost.of(1)
        most = min(PIECE, self.runner.piece(handle.kv.length + after))
        return count <= most and cost.of(count) <= apart

    def prefill(self, handle: Handle, count: int) -> None:
        """Run ``count`` pending tokens of a handle outside of the slots, but not the last one; with
        the log-probabilities of what comes next if they are wanted, ``PIECE`` at most."""
        kv, scores = handle.kv, handle.scores if handle.is_scored else None
        piece, held = kv.align(handle.history)[:-1][:count], kv.length
        if scores is not None:
            piece = piece[:PIECE]
        self.meter.run(len(piece), after=held)
        self._look(piece)
        try:
            logits = kv.run(piece, logits=scores is not None)
            if scores is not None:
                scores.add(held, logits[0])
        except Exception as error:
            raise Fault(error, handle) from error
        kv.submit()
        kv.snapshot()

    def follow(self, handle: Handle, count: int) -> None:
        """Have the model that drafts for a handle run ``count`` tokens of what it is behind."""
        assert handle.drafter is not None
        self.meter.skip()
        try:
            handle.drafter.follow(handle.history, count)
        except Exception as error:
            raise Fault(error, handle) from error

    def prefill_to(self, handle: Handle, tokens: int) -> None:
        """Run so many tokens of a handle's history, in pieces that are evaluated."""
        while handle.kv.length < tokens:
            most = self.runner.piece(handle.kv.length)
            self.prefill(handle, min(most, tokens - handle.kv.length))
            handle.kv.wait()
            self.meter.read()
            mx.clear_cache()

    def prefill_together(self, handles: Sequence[Handle]) -> None:
        """Run what handles that hold nothing have pending, but not the last token, in one pass.

        Each has ``longest_padded`` tokens to run at most.
        """
        rows = [(handle.kv, handle.pending[:-1]) for handle in handles]
        self.meter.run(len(rows) * max(len(tokens) for _, tokens in rows), after=0)
        for _, tokens in rows:
            self._look(tokens)
        try:
            self.runner.do(_run(rows, logits=False))
        except Exception:  # then each in a pass of its own, so that it is known whose it was
            for handle in handles:
                if len(pending := handle.align()) > 1:
                    self.prefill(handle, len(pending) - 1)
            return
        for kv, tokens in rows:
            kv.took(tokens)
            kv.submit()
            kv.snapshot()

    def _look(self, tokens: Sequence[Token]) -> None:
        """Learn nothing from a pass with images: the vision tower takes its own time."""
        if self.runner.feed is not None and any(token < 0 for token in tokens):
            self.meter.skip()

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
        self.meter.run(len(tokens))
        self._look(handle.pending)
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
        """Passes for what is next in the slots, in the way that runs the most tokens in the same
        time.

        A common pass runs as many tokens of each row as of any other. So long runs are cut where
        more tokens a row would make all of them wait, and go on in the next pass; or they go ahead
        in passes of their own, which spares their logits. Drafts are run whole.
        """
        if all(len(each.tokens) == 1 for each in work):
            return [self._run_group(part) for part in self._parts(list(work))]
        width = self._width([each for each in work if each.wanted == 1])
        for handle, tokens, wanted in work:
            if wanted > 1:
                handle.kv.snapshot(before=len(tokens))
        if width is None:
            self._run_groups(_ahead(work))
            return self._run_groups([each.rest() for each in work])
        return self._run_groups([each.cut(width) for each in work])

    def _width(self, work: Sequence[Work]) -> int | None:
        """The tokens of each row in a common pass that run the most tokens in the same time; None
        if all but the last ones had better go ahead."""
        lengths = [min(len(each.tokens), SLACK) for each in work]
        if max(lengths, default=1) == 1:
            return 1
        slots, of, rows = self.runner.slots, self.meter.cost.of, _span(work)
        assert slots is not None
        widths = {1, min(lengths)} if slots.recurrent else {1, *lengths}

        def speed(width: int) -> float:
            return sum([min(width, length) for length in lengths]) / of(rows * width)

        width = max(sorted(widths), key=speed)
        if any(len(each.tokens) > SLACK for each in work):
            return width
        ahead = sum([self._seconds(group) for group in self._groups(_ahead(work))])
        return None if sum(lengths) / (ahead + of(rows)) > speed(width) else width

    def _run_groups(self, work: Sequence[Work]) -> list[mx.array]:
        groups = self._groups(work)
        return [self._run_group(part) for group in groups for part in self._parts(group)]

    def _groups(self, work: Sequence[Work]) -> list[list[Work]]:
        """Those that share a pass, padded to the longest, because apart they would take longer.

        Recurrent states would take in the padding: there all runs of a pass are equally long.
        """
        slots = self.runner.slots
        by_length: dict[int, list[Work]] = {}
        for each in work:
            by_length.setdefault(len(each.tokens), []).append(each)
        groups = [by_length[length] for length in sorted(by_length)]
        while len(groups) > 1 and slots is not None and not slots.recurrent:
            saved = [
                self._seconds(a) + self._seconds(b) - self._seconds([*a, *b])
                for a, b in pairwise(groups)
            ]
            at = saved.index(max(saved))
            if saved[at] < 0:
                break
            groups[at : at + 2] = [groups[at] + groups[at + 1]]
        return groups

    def _parts(self, group: list[Work]) -> list[list[Work]]:
        """A group in the order of its slots; without those between them, if passes apart take less
        time than a pass in which these take part."""
        group.sort(key=_index)
        if _span(group) == len(group):
            return [group]
        parts: list[list[Work]] = []
        for each in group:
            if parts and _index(parts[-1][-1]) == _index(each) - 1:
                parts[-1].append(each)
            else:
                parts.append([each])
        apart = sum([self._one_pass(part) for part in parts])
        return [group] if self._one_pass(group) <= apart else parts

    def _seconds(self, group: list[Work]) -> float:
        return sum([self._one_pass(part) for part in self._parts(group)])

    def _one_pass(self, group: Sequence[Work]) -> float:
        return self._share(group) * self.meter.cost.of(_size(group))

    def _share(self, group: Sequence[Work]) -> float:
        return 1.0 if any(each.wanted for each in group) else self._bare

    def _run_group(self, group: list[Work]) -> mx.array:
        """Run what is next for several slots, in their order, side by side in one pass."""
        longest, first = max([len(each.tokens) for each in group]), _index(group[0])
        self.meter.run(_size(group), share=self._share(group))
        run = _run([(w.handle.kv, w.tokens) for w in group], logits=any(w.wanted for w in group))
        logits: mx.array = self.runner.do(run)
        width = logits.shape[1]
        logits = logits.reshape(-1, logits.shape[-1])
        for each in group:
            each.handle.kv.took(each.tokens)
            padding = longest - len(each.tokens)
            each.done(logits, (_index(each) - first + 1) * width - padding - each.wanted)
        return logits


def _run(rows: Sequence[Row], *, logits: bool) -> Run:
    return Run(tuple([(kv.number, tuple(tokens)) for kv, tokens in rows]), logits)


def _ahead(work: Sequence[Work]) -> list[Work]:
    """All but the last token of each run that is not drafted."""
    longer = [each for each in work if each.wanted == 1 and len(each.tokens) > 1]
    return [each.cut(len(each.tokens) - 1) for each in longer]


def _size(group: Sequence[Work]) -> int:
    """How many tokens a pass has, padding included."""
    return _span(group) * max([len(each.tokens) for each in group])


def _span(work: Sequence[Work]) -> int:
    """How many slots there are from the first to the last of these."""
    indexes = [_index(each) for each in work]
    return max(indexes) - min(indexes) + 1


def _index(work: Work) -> int:
    slot = work.handle.kv.slot
    assert slot is not None
    return slot.index
