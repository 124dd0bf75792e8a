"""What a forward pass takes by its number of tokens, learned while the engine runs.

On a GPU a pass of a few tokens takes as long as one of a single token, and from some number on it
takes as long as its tokens are many; on a CPU nearly every token counts. The more is before
a piece of a prompt, the longer it takes, as each of its tokens looks at all of that. So whatever
weighs passes against each other asks here: how much of a prompt to run between two steps, which
rows share a pass, how wide that is.
"""

from __future__ import annotations

import math
from bisect import bisect_right, insort
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from ..kv import PREFILL_STEP
from ..kv.here import Here

OWN = 8  # tokens that a pass costs besides its own, where it is larger than any that was seen
FIRST = 16  # tokens to run at first in a given time
_BUCKETS = 24  # powers of two
_WEIGHT = 0.25  # of the newest in a running mean
_SIZES = sorted({(4 + part) << power >> 2 for power in range(_BUCKETS) for part in range(4)})
_PAUSE, _PAUSE_SECONDS = 0.25, 1e-3  # between two steps, of a step and at least
_ENOUGH = 8  # steps alike, after which one in so many is learned from
_ALIKE = 1.1  # times the seconds of another pass that are not worth less tokens


class PassCost:
    """Running means of tokens and seconds, one for each power of two.

    A larger pass takes at least as long as a smaller one, and at most as much longer as it is
    larger. So what is seen of one size moves the means of others, which may be old: requests get
    longer, and rows come and go. A piece of a prompt takes longer in proportion to the tokens
    before it: pieces that come after many teach this slope, and nothing else. Threads may share it,
    as no figure is exact.
    """

    __slots__ = ("_counts", "_known", "_lengths", "_rises", "_seconds", "_tokens")

    def __init__(self) -> None:
        self._known: list[int] = []  # sizes that were seen, by their powers of two, in order
        self._rises = self._lengths = 0.0  # sums whose quotient is the slope
        self._tokens = [0.0] * _BUCKETS
        self._seconds = [0.0] * _BUCKETS
        self._counts = [0] * _BUCKETS

    @property
    def is_known(self) -> bool:
        """Whether any pass was seen."""
        return bool(self._known)

    def saw(
        self,
        tokens: int,
        seconds: float,
        *,
        after: int = 0,
        least: bool = False,
        most: bool = False,
    ) -> None:
        """Learn what a pass took, ``after`` so many tokens of a prompt; that it takes so long at
        ``least`` or at ``most`` tells nothing new of a size that is known to take longer, or
        less."""
        at = tokens.bit_length() - 1
        if self._counts[at] and (least or most):
            known = self._slower(after) * self._seconds[at] * tokens / self._tokens[at]
            if seconds <= known if least else seconds >= known:
                return
        if after >= PREFILL_STEP and self._counts[at]:  # after fewer, the slope is lost in noise
            self._rises += after * (seconds / self.of(tokens) - 1.0) - _WEIGHT * self._rises
            self._lengths += after * after - _WEIGHT * self._lengths
            if self._rises > 0.0:
                return
        seconds /= self._slower(after)
        if not self._counts[at]:
            insort(self._known, at)
        self._counts[at] += 1
        weight = max(_WEIGHT, 1 / self._counts[at])
        if 2 * seconds < self._seconds[at]:
            weight = 1.0  # what can be done in less does not take more: that was an accident
        self._tokens[at] += weight * (tokens - self._tokens[at])
        self._seconds[at] += weight * (seconds - self._seconds[at])
        size, took = self._tokens[at], self._seconds[at]
        place = self._known.index(at)
        for others in (self._known[place + 1 :], reversed(self._known[:place])):
            for other in others:  # from the nearest on; one that fits vouches for those after it
                was, ends = self._seconds[other], (took, took * self._tokens[other] / size)
                self._seconds[other] = min(max(ends), max(min(ends), was))
                if self._seconds[other] == was:
                    break

    def of(self, tokens: int, after: int = 0) -> float:
        """The seconds of a pass; in units of a token as long as nothing is known."""
        return self._slower(after) * self._of(tokens)

    def _slower(self, after: int) -> float:
        """How many times as long a piece of a prompt takes ``after`` so many tokens."""
        return 1.0 + after * max(0.0, self._rises / self._lengths) if self._lengths else 1.0

    def _of(self, tokens: int, *, most: bool = False) -> float:
        """The same, or what it may take at most: what is smaller or larger than all that was seen
        is thought to cost ``OWN`` tokens besides its own, but may take as long as that, or every
        token."""
        size = took = 0.0  # of the largest known pass that is not larger
        own = 0 if most else OWN
        for at in self._known:
            tokens_seen, seconds = self._tokens[at], self._seconds[at]
            if tokens_seen > tokens:
                if size:
                    return took + (seconds - took) * (tokens - size) / (tokens_seen - size)
                return seconds if most else seconds * (own + tokens) / (own + tokens_seen)
            size, took = tokens_seen, seconds
        return took * (own + tokens) / (own + size) if size else float(OWN + tokens)

    def most(self, seconds: float, tokens: int, after: int = 0) -> int:
        """How many of ``tokens`` fit in that time, ``after`` so many others of a prompt.

        At least as many as take no longer than a single one. Sizes that were never tried are come
        to by steps.
        """
        if seconds == math.inf:
            return tokens
        if not self.is_known:
            return min(tokens, FIRST)
        longest = partial(self._of, most=True)
        allowed = max(seconds / self._slower(after), _ALIKE * longest(1))
        if longest(tokens) <= allowed:
            return tokens
        fitting = bisect_right(_SIZES, allowed, key=longest)
        return min(tokens, _SIZES[max(0, fitting - 1)])


class Pass(NamedTuple):
    """Of how many ``tokens``, all rows and their padding together, and ``after`` how many others,
    if it is of a prompt."""

    tokens: int
    after: int | None = None


class Meter:
    """Feeds ``cost`` with what is seen when drawn tokens are read from a ``device``.

    A pass that was submitted after a look-ahead is waited for by the read after the next. So each
    draw says after how many passes it was submitted (``ran`` then), and a read learns from those
    that no read before it waited for. A pass takes the host's time as well, when it is submitted:
    between two reads between which fewer are submitted than are waited for, it seems to take less
    than it does, as the last one of a row does, and more the other way round. ``plain`` are the
    seconds that those of them took that were not of a prompt, a running mean, and ``host`` those
    that the device waited for what follows from drawn tokens, if nothing was submitted before they
    were known.
    """

    __slots__ = (
        "_alike",
        "_device",
        "_drafting",
        "_fresh",
        "_last",
        "_left",
        "_passes",
        "_since",
        "_skips",
        "_submitted",
        "cost",
        "host",
        "plain",
        "ran",
    )

    def __init__(self, cost: PassCost, device: Here) -> None:
        self.cost = cost
        self.ran = 0
        self.plain = self.host = 0.0
        self._fresh = False  # whether nothing but what follows from drawn tokens was done since
        # Who is told what drafting took, with which the interval began
        self._drafting: Callable[[float, float], None] | None = None
        self._device = device
        self._passes: deque[Pass] = deque()  # that nobody has waited for
        self._since = self._left = 0.0
        self._skips = False
        self._submitted = 0  # since the last read
        self._last: Sequence[Pass] = ()  # that a read waited for
        self._alike = 0  # reads before it that waited for the same

    def enter(self) -> None:
        """Note that a step begins; after a pause, nobody knows when the device was done."""
        self._fresh = False
        pause = self._device.now() - self._left
        if self._passes and pause > max(_PAUSE * self.plain, _PAUSE_SECONDS):
            self._skips = True

    def leave(self) -> None:
        """Note that a step, or what follows from it, is over."""
        self._left = self._device.now()

    def run(self, tokens: int, *, after: int | None = None) -> None:
        """Note that a ``Pass`` is about to be submitted."""
        if not self._passes and self._drafting is None:
            self._begin()
        self._passes.append(Pass(tokens, after))
        self._submitted += 1
        self.ran += 1

    def drafts(self, took: Callable[[float, float], None]) -> None:
        """Note that a model is about to draft for the next pass; if that can be told, ``took`` gets
        the seconds, and those of a pass without drafts."""
        if self._passes or self._drafting is not None:
            self.skip()
        else:
            self._begin()
            self._drafting = took

    def resume(self) -> float:
        """Note that the device is given something to do; returns when that is."""
        now = self._device.now()
        if self._fresh:
            self.host += _WEIGHT * (now - self._since - self.host)
            self._fresh = False
        return now

    def _begin(self) -> None:
        self._since = self.resume()

    def skip(self) -> None:
        """Note that the device does more than passes: nothing follows from the next read."""
        self._skips = True

    def forget(self) -> None:
        """Note that what was submitted is lost."""
        self._passes.clear()
        self._drafting = None

    def read(self, after: int | None = None) -> None:
        """Note that the device has done the first ``after`` passes, or all."""
        left = self.ran - after if after is not None and self._device.queues else 0
        count = len(self._passes) - left
        waited = [self._passes.popleft() for _ in range(count)]
        now = self._device.now()
        seconds, self._since = now - self._since, now
        drafting, self._drafting, self._fresh = self._drafting, None, True
        if drafting is not None:
            if len(waited) == 1 and not self._skips and self.cost.is_known:
                drafting(seconds - self.cost.of(waited[0].tokens), self.cost.of(1))
        elif waited and not self._skips and self._is_worth(waited):
            self._learn(waited, seconds, self._submitted - count)
        self._skips = False
        self._submitted = 0

    def _is_worth(self, passes: Sequence[Pass]) -> bool:
        """Whether to learn from these: of many steps alike, every few tell enough."""
        alike, self._last = passes == self._last, passes
        self._alike = self._alike + 1 if alike else 0
        return self._alike < _ENOUGH or not self._alike % _ENOUGH

    def _learn(self, passes: Sequence[Pass], seconds: float, more: int) -> None:
        """The longest pass takes what the others leave, and as much as one of them at least;
        ``more`` were submitted in that time than those."""
        cost = self.cost
        thought = [cost.of(each.tokens, each.after or 0) for each in passes]
        if cost.is_known or len(passes) == 1:
            longest = max(thought)
            tokens, after = passes[thought.index(longest)]
            alike = thought.count(longest)
            left = seconds - sum(each for each in thought if each != longest)
            took = max(left / alike, seconds / len(passes))
            cost.saw(tokens, took, after=after or 0, least=more < 0, most=more > 0)
        else:
            cost.saw(sum(each.tokens for each in passes), seconds)
        steps = [each for each in passes if each.after is None]
        if steps:
            plain = sum([cost.of(each.tokens) for each in steps])
            self.plain += (_WEIGHT if self.plain else 1.0) * (plain - self.plain)
