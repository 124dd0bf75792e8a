"""Five things that happen to a server, on devices that are only reckoned with.

Owns the workloads and what is counted of them, and mlx-lm's policy for the same. Invariant: both
policies pay the same for a pass.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import mlxgen
from mlxgen.engine.limits import Limits
from mlxgen.engine.options import Options
from mlxgen.engine.scheduling.scheduler import Scheduler

from .batch import RECORDS, prompt_of
from .figures import Figure, at_least, at_most
from .simulated import (
    DEVICES,
    DRAWING,
    HOST_LAYER,
    HOST_ROW,
    HOST_TOKEN,
    SHAPES,
    Device,
    Shape,
    SimulatedModel,
    Timeline,
)

# mlx_lm.generate.BatchGenerator: tokens between two steps, of so many prompts; rows that generate
PREFILL, PROMPTS, ROWS = 2048, 8, 32
WARM = 40  # tokens of those that run already when others arrive


class Asked(NamedTuple):
    """A request: ``prompt`` tokens, and so many to generate."""

    prompt: int
    tokens: int
    options: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Workload:
    """Some ``running`` when others are ``arriving``."""

    name: str
    running: Sequence[Asked] = ()
    arriving: Sequence[Asked] = ()


def _schema(i: int) -> dict[str, Any]:
    schemas = list(RECORDS.values())
    items = {"type": "array", "items": schemas[i % len(schemas)], "minItems": 50}
    return {"filters": [mlxgen.JsonSchema(items)], "temperature": 0.7}


LONG = 1_000_000  # tokens of those that generate all the time
ONE = Workload("1 row, a prompt of 4,096 arrives", [Asked(64, LONG)], [Asked(4_096, 32)])
EIGHT = Workload("8 rows, a prompt of 32,768 arrives", [Asked(64, LONG)] * 8, [Asked(32_768, 32)])
FORCED = Workload("16 rows with a schema each", [Asked(64, 200, _schema(i)) for i in range(16)])
FREE = Workload("16 rows", [Asked(64, 200, {"temperature": 0.7})] * 16)
DRAFTS = Workload("4 rows with n-gram drafts", [Asked(64, 200, {"draft": "ngram"})] * 4)
MANY = Workload("64 short requests at once", [], [Asked(64 + i, 64) for i in range(64)])
WORKLOADS = (ONE, EIGHT, FORCED, DRAFTS, MANY)


def figures() -> Iterator[Figure]:
    for device, shape in itertools.product(DEVICES, SHAPES):
        where = f"{device.name}, {shape.name}"
        beside = ours(device, shape, ONE).first[0] / alone(device, shape, ONE.arriving[0].prompt)
        yield at_most(f"{where}: {ONE.name}: time over that alone", beside, 1.5)
        forced, free = (ours(device, shape, load).rate for load in (FORCED, FREE))
        what = f"{where}: {FORCED.name}: tokens/s over unconstrained"
        yield at_least(what, forced / free, 1.0)
        for load in WORKLOADS:
            found, peer = ours(device, shape, load), theirs(device, shape, load)
            text = f"{found}; mlx-lm's policy: {peer}"
            yield Figure(f"{where}: {load.name}", text, value=found.rate)


@dataclass(slots=True)
class Outcome:
    """``first``: seconds to the first token of each that arrived. ``gaps``: seconds between two
    tokens of those that ran already. ``rate``: tokens a second of all, while any was left."""

    first: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    rate: float = 0.0

    def __str__(self) -> str:
        parts = []
        if self.first:
            last = f" ({max(self.first):.2f} the last)" if len(self.first) > 1 else ""
            parts.append(f"first token {statistics.median(self.first):.2f} s{last}")
        if self.gaps:
            parts.append(f"longest gap {max(self.gaps) * 1e3:.0f} ms")
        return ", ".join([*parts, f"{self.rate:.0f} tokens/s"])


def _begin(
    device: Device, shape: Shape, limits: Limits | None = None
) -> tuple[Scheduler, Timeline, Callable[[Asked, int], Any]]:
    lm = SimulatedModel(device, shape)
    scheduler = Scheduler(
        lm.runtime, replace(limits or Limits(), keep_prefixes=False, max_bytes=1 << 50)
    )

    def submit(asked: Asked, seed: int) -> Any:
        given = {
            "max_tokens": asked.tokens,
            "ignore_eos": True,
            "draft": "off",
            "seed": seed,
            **(asked.options or {}),
        }
        prompt = prompt_of(asked.prompt, seed)
        return scheduler.submit(lm.runtime.prepare(prompt, Options.of(given)))

    return scheduler, lm.timeline, submit


def ours(device: Device, shape: Shape, load: Workload, limits: Limits | None = None) -> Outcome:
    """What the scheduler makes of a workload."""
    scheduler, line, submit = _begin(device, shape, limits)
    found = Outcome()
    running = {submit(asked, i): 0.0 for i, asked in enumerate(load.running)}
    endless = [
        handle for handle, asked in zip(running, load.running, strict=True) if asked.tokens == LONG
    ]
    while any(handle.request.position < WARM for handle in endless):
        scheduler.step()
    start, tokens = line.now, 0
    running = dict.fromkeys(running, start)
    waiting = {submit(asked, 100 + i) for i, asked in enumerate(load.arriving)}
    count = len(running) + len(waiting) - len(endless)
    while count:
        for event in scheduler.step():
            assert event.error is None, event.error
            handle = event.handle
            tokens += len(event.chunks)
            if handle in running:
                found.gaps.append(line.now - running[handle])
                running[handle] = line.now
            elif handle in waiting:
                waiting.discard(handle)
                found.first.append(line.now - start)
            count -= handle.has_ended
    found.rate = tokens / (line.now - start)
    scheduler.close()
    if not endless:
        found.gaps.clear()  # those of the beginning are no gaps
    return found


def alone(device: Device, shape: Shape, prompt: int) -> float:
    """Seconds to the first token of a prompt if nobody else runs."""
    return ours(device, shape, Workload("", [], [Asked(prompt, 2)])).first[0]


def steady(device: Device, shape: Shape, rows: int) -> float:
    """Tokens a second of so many rows that all generate."""
    scheduler, line, submit = _begin(device, shape)
    handles = [submit(Asked(64, LONG), i) for i in range(rows)]
    while any(handle.request.position < WARM for handle in handles):
        scheduler.step()
    start, tokens = line.now, 0
    while tokens < WARM * rows:
        tokens += sum(len(event.chunks) for event in scheduler.step())
    scheduler.close()
    return tokens / (line.now - start)


def plain(device: Device, shape: Shape, held: int, tokens: int) -> float:
    """Seconds of ``mlx_lm.generate_step`` for so many tokens after ``held`` others, one by one: the
    next pass is submitted before a token is read."""
    line, done = Timeline(device), 0.0
    for length in range(held + 1, held + tokens + 1):
        line.now += shape.layers * HOST_LAYER
        drawing = DRAWING * device.overhead
        submitted = line.work(shape.seconds(device, 1, 1, length) + drawing)
        line.wait(done)
        line.now += HOST_TOKEN
        done = submitted
    return done


def speculative(
    device: Device, shape: Shape, small: Shape, held: int, stood: Sequence[bool], count: int
) -> float:
    """Seconds of ``mlx_lm.speculative_generate_step`` with a ``small`` draft for as many tokens as
    ``stood`` is long, after ``held`` others: whether the draft is right at each of them."""
    line, place, drawing = Timeline(device), 0, DRAWING * device.overhead
    behind = 1  # tokens that the draft runs first
    while place < len(stood):
        length, drafted = held + place, min(count, len(stood) - place)
        for each in [behind, *[1] * (drafted - 1)]:
            line.now += small.layers * HOST_LAYER
            line.work(small.seconds(device, 1, each, length) + drawing)
        line.now += shape.layers * HOST_LAYER
        line.work(shape.seconds(device, 1, drafted + 1, length) + drawing)
        line.wait(line.busy)
        right = [*stood[place : place + drafted], False].index(False)
        behind = 1 + (right == drafted)
        line.now += HOST_TOKEN * (right + 1)
        place += right + 1
    return line.now


@dataclass(slots=True, eq=False)
class _Row:
    held: int
    left: int
    is_new: bool = False


def theirs(device: Device, shape: Shape, load: Workload) -> Outcome:
    """What ``BatchGenerator`` would: a step of all, then up to 2,048 tokens of up to 8 prompts, as
    long as fewer than 32 rows generate.

    It knows no forced runs, and no drafts in a batch: all tokens are generated one by one.
    """
    line, found = Timeline(device), Outcome()
    rows = [_Row(asked.prompt, asked.tokens) for asked in load.running if asked.tokens == LONG]
    endless = len(rows)
    others = [*load.running[endless:], *load.arriving]
    queue = [[0, asked.prompt, asked.tokens] for asked in others]
    submitted, done = rows, 0.0  # the step on its way
    tokens, before = 0, 0.0

    def run(count: int, width: int, places: int) -> float:
        line.now += shape.layers * HOST_LAYER
        return line.work(shape.seconds(device, count, width, places))

    while len(rows) > endless or queue:
        if rows:
            line.now += (HOST_ROW + HOST_TOKEN) * len(rows)
            next_done = run(len(rows), 1, max(each.held for each in rows))
            line.wait(done)
            came, submitted, done = submitted, rows, next_done
            tokens += len(came)
            found.gaps.append(line.now - before)
            before = line.now
            found.first += [line.now for each in came if each.is_new]
            for each in came:
                each.held += 1
                each.left -= 1
                each.is_new = False
            rows = [each for each in rows if each.left]
        batch = queue[: max(0, min(PROMPTS, ROWS - len(rows)))]
        if batch:
            width = max(min(PREFILL, total - ran) for ran, total, _ in batch)
            places = max(ran for ran, _, _ in batch) + width
            line.wait(run(len(batch), width, places))
            for prompt in batch:
                prompt[0] = min(prompt[1], prompt[0] + width)
            rows = [*rows, *(_Row(ran, left, True) for ran, total, left in batch if ran == total)]
            queue = [prompt for prompt in queue if prompt[0] < prompt[1]]
    found.rate = tokens / line.now
    if not endless:
        found.gaps.clear()
    if not load.arriving:
        found.first.clear()
    return found
