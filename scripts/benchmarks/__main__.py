"""``scripts/bench``: runs the measurements and prints what was wanted and what was found.

Owns the list of measurements and their report. Must never measure anything itself.
Invariant: every figure is printed with the target that it is held against, met or not.
"""

from __future__ import annotations

import argparse
import itertools
import platform
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import mlx.core as mx
from rich.console import Console
from rich.table import Table

import mlxgen
from mlxgen.tokens import Vocabulary

from . import (
    agents,
    bandwidth,
    batch,
    calls,
    control,
    disk,
    expected,
    hostile,
    kv,
    machines,
    primitives,
    recited,
    serving,
    simulate,
    simulated,
    single,
    soak,
    speculation,
    steering,
)
from .links import LINKS
from .models import TINY, WIDE, demo, fake_tokenizer, random_llama, tiny
from .process import DRAFT, served
from .traced import Traced


class Figure(NamedTuple):
    """One measured figure; ``met`` is None where there is no target."""

    what: str
    found: str
    wanted: str = ""
    met: bool | None = None


def at_least(what: str, value: float, text: str, target: float) -> Figure:
    return Figure(what, text, f"at least {target:g}", value >= target)


def at_most(what: str, value: float, text: str, target: float, unit: str = "") -> Figure:
    return Figure(what, text, f"at most {target:g}{unit}", value <= target)


def run_single(turns: int) -> Iterator[Figure]:
    """The step loop of one sequence against mlx-lm's."""
    models: tuple[tuple[str, Callable[[], mlxgen.LanguageModel], int], ...] = (
        ("demo", demo, 60),
        ("150k vocabulary", lambda: random_llama(WIDE, 64, 2), 20),
    )
    settings: tuple[tuple[str, float, float], ...] = (
        ("greedy", 0.0, 1.0),
        ("temperature 0.7", 0.7, 1.0),
        ("temperature 0.7, top-p 0.9", 0.7, 0.9),
    )
    for name, make, tokens in models:
        lm = make()
        for label, temperature, top_p in settings:
            ratio = single.streams(lm, tokens, turns, temperature, top_p).ratio
            what = f"{name}, {label}: tokens per second over mlx_lm.stream_generate's"
            yield at_least(what, ratio.median, str(ratio), 1.0)
        work = min(single.host_work(lm) for _ in range(3))
        yield at_most(f"{name}: host work a token outside MLX", work, f"{work:.1f} µs", 8, " µs")
    if mx.default_device() == mx.Device(mx.cpu):
        return  # reading the weights is not what takes the time
    for label, bits in (("bfloat16", None), ("4 bits", 4)):
        lm = bandwidth.large_llama(bits)
        found = bandwidth.share(lm, 60, turns)
        what = f"Llama of 8B shape, {label}, {lm.name}: share of the memory bandwidth"
        yield at_least(what, found.percent, str(found), 70)


def run_calls(turns: int) -> Iterator[Figure]:
    """Python calls for each generated token."""
    for name, ours, theirs, aim in calls.cases():
        found = calls.count(ours)
        text = str(found)
        if theirs is not None:
            text += f"; mlx-lm {calls.count(theirs)}"
        yield at_most(f"{name}: Python calls of mlxgen's a token", found.calls, text, aim)


def run_overhead(turns: int) -> Iterator[Figure]:
    """A schema, two stops and a hook together, where the forward pass is long."""
    lm = random_llama(WIDE, 512, 4)
    hooks = {"the text": steering.read_text, "the probability": steering.read_probability}
    for looks_at, hook in hooks.items():
        found = steering.overhead(lm, hook, 20, turns)
        cost = (1 / found.ratio.median - 1) * 100
        yield at_most(
            f"schema, two stops and a hook that looks at {looks_at}, per forward pass of "
            f"{found.theirs.median * 1e3:.0f} ms",
            cost,
            f"{cost:+.1f} % (speed over that without: {found.ratio})",
            3,
            " %",
        )
    for name, lm in (("demo", demo()), ("150k vocabulary", random_llama(WIDE, 64, 2))):
        ratio = steering.free_text(lm, 60, turns).ratio
        what = f"{name}, 60 tokens under an expression for any text: speed over that without"
        yield at_least(what, ratio.median, str(ratio), 0.98)


def run_masks(turns: int) -> Iterator[Figure]:
    """Masks of the bench's schemas, with three engines."""
    vocabulary = Vocabulary.of(fake_tokenizer(32_000))
    makers: tuple[tuple[str, Callable[[dict[str, Any]], Any], int], ...] = (
        ("llguidance", lambda schema: mlxgen.JsonSchema(schema), 60 * turns),
        ("outlines-core", lambda schema: mlxgen.OutlinesCore.json_schema(schema), 20 * turns),
        (
            "lm-format-enforcer",
            lambda schema: mlxgen.LMFormatEnforcer.json_schema(schema),
            6 * turns,
        ),
    )
    for name, make, count in makers:
        p50, p99 = steering.mask_times(vocabulary, make, count)
        text = f"p50 {p50:.1f} µs, p99 {p99:.0f} µs"
        what = f"mask over 32,000 tokens, {name}"
        if name == "llguidance":
            yield Figure(
                what, text, "p50 at most 50 µs, p99 at most 1000 µs", p50 <= 50 and p99 <= 1000
            )
        else:
            yield Figure(what, text)


def run_rewinds(turns: int) -> Iterator[Figure]:
    """Taking back 8 tokens of a filter after a short and after a long history."""
    vocabulary = Vocabulary.of(fake_tokenizer(32_000))
    for name, wrap in (
        ("native", lambda f: f),
        ("copyable", steering.CopyOnly),
        ("forward-only", steering.ForwardOnly),
    ):
        short = steering.rewind_times(vocabulary, wrap, 100)
        long = steering.rewind_times(vocabulary, wrap, 10_000)
        text = f"{short.median:.0f} µs after 100 tokens, {long.median:.0f} µs after 10,000"
        if name == "forward-only":
            text += f": {long.median / 9_992:.1f} µs a replayed token"
            yield Figure(f"rewind by 8, {name} filter", text)
        else:
            yield Figure(
                f"rewind by 8, {name} filter", text, "the same", long.median < 2 * short.median
            )


def run_passes(turns: int) -> Iterator[Figure]:
    """Forward passes for each token of JSON records."""
    lm = demo()
    records = speculation.demo_records(lm)
    found = steering.passes_per_token(lm, records)
    yield at_most("demo: forward passes a token, its record schemas", found, f"{found:.2f}", 0.7)
    wide = random_llama(32_000, 64, 2)
    prompts = [(single.PROMPT, schema) for schema in steering.RECORDS.values()]
    found = steering.passes_per_token(wide, prompts)
    yield Figure("random, 32,000 tokens: forward passes a token, bench's schemas", f"{found:.2f}")


def run_batch(given: int) -> Iterator[Figure]:
    """Many rows against mlx-lm's BatchGenerator."""
    models: tuple[tuple[str, Callable[[], mlxgen.LanguageModel], int], ...] = (
        ("demo", demo, 40),
        ("150k vocabulary", lambda: random_llama(WIDE, 64, 2), 12),
        ("long forward", lambda: random_llama(8_000, 512, 8), 12),
    )
    peer = "tokens per second over mlx_lm.BatchGenerator's"
    for name, make, tokens in models:
        lm = make()
        turns = given if name == "demo" else max(2, given // 2)  # these are short
        for rows in (1, 4, 16, 32):
            ratio = batch.speed(lm, rows, tokens, turns).ratio
            yield at_least(f"{name}, {rows} rows: {peer}", ratio.median, str(ratio), 1.0)
        ratio = batch.speed(lm, 16, tokens, turns, batch.MIXED).ratio
        what = f"{name}, 16 rows with 16 different samplers: {peer}"
        yield at_least(what, ratio.median, str(ratio), 1.5)
        by_pass, by_token, share = batch.constrained(lm, 16, 2 * tokens, turns)
        what = f"{name}, 16 rows with a JSON schema each: tokens per second over unconstrained"
        yield at_least(what, by_token.median, str(by_token), 1.0)
        yield Figure(f"the same: passes per second ({share:.2f} passes a token)", str(by_pass))


def run_primitives(turns: int) -> Iterator[Figure]:
    """The graph of a decode step against that of mlx-lm's; nothing is timed."""
    for name in TINY:
        lm = tiny(name)
        cases = {**primitives.ALONE, **primitives.TOGETHER, **primitives.RAGGED}
        if name != "qwen3_next":  # mlx-lm has no drafts there
            cases["single, a draft model"] = primitives.DRAFTED
        for what, case in cases.items():
            if what not in primitives.RAGGED:
                ours, theirs = primitives.counts(lm, case)
                found = (
                    f"{ours.primitives / theirs.primitives:.2f}: {ours.primitives} over "
                    f"{theirs.primitives}, {ours.kernels} kernels over {theirs.kernels}"
                )
                more = 4 if what in primitives.ALONE else 0.1 * theirs.primitives
                wanted = f"at most mlx-lm's plus {4 if what in primitives.ALONE else '10 %'}"
                met = ours.primitives <= theirs.primitives + more
                yield Figure(f"{name}, {what}: primitives over mlx-lm's", found, wanted, met)
            share, peer = (primitives.share_copied(lm, side) for side in case[:2])
            found = f"{100 * share:.0f} %, mlx-lm's {100 * peer:.0f} %"
            what = f"{name}, {what}: KV copied, of that read"
            yield Figure(what, found, "at most mlx-lm's", share <= peer)
    lm, rows, length = tiny("llama"), 4, 2_900
    layer = rows * length * lm.footprint.growing / 4
    share, peer = (
        primitives.memory_beyond(lm, made, rows, length) / layer
        for made in (primitives.ours_together, primitives.theirs_together)
    )
    what = "llama, 4 rows of 2,900 tokens: memory of steps beyond what is held, over a layer's KV"
    yield at_most(what, share, f"{share:.2f}, mlx-lm's {peer:.2f}", 0.25)


def run_prefix(turns: int) -> Iterator[Figure]:
    """The prefix cache, evenness and memory."""
    lm = random_llama(8_000, 256, 4)
    cold, peer = batch.first_token(lm, 2_000, max(2, turns // 2))
    yield at_least(
        "time to first token, prefix of 2,000 tokens: without the prefix cache over with",
        cold.ratio.median,
        f"{cold.ratio}: {cold.ours.median * 1e3:.1f} ms",
        20,
    )
    yield at_least(
        "the same: mlx_lm.LRUPromptCache's over ours",
        peer.ratio.median,
        f"{peer.ratio}: {peer.theirs.median * 1e3:.1f} ms",
        1.0,
    )
    gaps = min(batch.longest_gap(lm, 8, 4_000) for _ in range(3))
    yield at_most(
        "8 rows, a prompt of 4,000 tokens arrives: longest gap over the usual one, best of 3 runs",
        gaps.longest,
        f"{gaps.longest:.2f} (without the prompt {gaps.noise:.2f})",
        batch.ASKED,
    )
    percentile = gaps.nearly_longest
    yield at_most("the same: 99th percentile", percentile, f"{percentile:.2f}", batch.ASKED)
    running, kept, theirs, their_kept = batch.kv_bytes(lm, 16, 2_000)
    yield at_most(
        "16 requests with a common prompt of 2,000 tokens: KV bytes of all over mlx-lm's",
        running / theirs,
        f"{running / theirs:.2f}: {running / 1e6:.1f} MB over {theirs / 1e6:.1f} MB",
        1.1,
    )
    yield at_most(
        "kept of them for later: bytes over mlx_lm.LRUPromptCache's",
        kept / their_kept,
        f"{kept / their_kept:.2f}: {kept / 1e6:.1f} MB over {their_kept / 1e6:.1f} MB",
        1,
    )
    first, last = batch.growth(random_llama(2_000, 64, 2), 1_000)
    yield at_most(
        "MLX's memory after 1,000 requests over that after 10, without the prefix cache",
        last / first,
        f"{last / first:.3f}: {last / 1e6:.2f} MB over {first / 1e6:.2f} MB",
        1.05,
    )


def run_kv(turns: int) -> Iterator[Figure]:
    """Quantised KV against that of floats."""
    half = random_llama(8_000, 256, 4)
    half.model.set_dtype(mx.bfloat16)
    exact, taught = random_llama(8_000, 256, 4), demo()
    known = kv.perplexity(taught, 150)
    for bits in (8, 4):
        lm, small = kv.quantised(exact, bits), kv.quantised(half, bits)
        share = small.footprint.growing / half.footprint.growing
        yield Figure(f"{bits} bits: bytes a token over bfloat16's, groups of 32", f"{share:.3f}")
        found = kv.rows(lm, exact, 500, 10, turns)
        what = f"{bits} bits, 16 rows of 500 tokens: bytes over float32's, room included"
        yield Figure(what, f"{found.share:.3f}")
        yield Figure("the same: tokens per second over float32's", str(found.seconds.ratio))
        for start in (0, 256):
            change = kv.logits_changed(kv.quantised(exact, bits, start), exact, 512)
            what = f"{bits} bits from {start} on, 512 random tokens: largest change of a logit"
            text = f"{change.largest:.4f}, of a standard deviation of {change.deviation:.2f}"
            yield Figure(what, text)
        for start in (0, 32):
            other = kv.perplexity(kv.quantised(taught, bits, start), 150)
            what = f"{bits} bits from {start} on, demo: perplexity of answers that it never saw"
            yield Figure(what, f"{other:.4f}, {known:.4f} with floats")


def run_speculation(turns: int) -> Iterator[Figure]:
    """Drafts: those that choose themselves, a draft model's, and such that never stand."""
    long = random_llama(recited.VOCAB, 256, 4).model
    for load in speculation.workloads(long):
        yield Figure(f"{load.name}: passes, and what stood", str(speculation.drafted(load)))
        ratio = speculation.against_plain(load, max(3, turns // 3)).ratio
        yield Figure("the same: tokens per second over mlx-lm's plain decode", str(ratio))
    shape = simulated.SHAPES[1]
    for load, device in itertools.product(speculation.workloads(), simulated.DEVICES):
        times, found = speculation.simulated(load, device, shape)
        what = f"{load.name}, {device.name}, {shape.name}: tokens/s over mlx-lm's plain decode"
        text = f"{times:.2f}: {found}"
        if device.name == "M4 Max" and load.target is not None:
            yield at_least(what, times, text, load.target)
        else:
            yield Figure(what, text)
    lm, draft = speculation.demo_pair()
    stories, _, records, *_ = speculation.workloads()
    found = speculation.drafted(records, draft=draft)
    what = "demo's JSON records, schema, fast-forward and draft model: passes"
    yield at_most(what, found.passes_a_token, str(found), 0.4)
    found = speculation.drafted(stories, draft=draft)
    yield Figure("stories, draft model: passes, and what stood", str(found))
    ratio = speculation.against_mlx_lm(lm, draft, speculation.STORY, 80, turns).ratio
    what = "a story, draft model: tokens per second over mlx_lm's speculative decoding"
    yield at_least(what, ratio.median, str(ratio), 1.05)
    small = random_llama(recited.VOCAB, 128, 2).model
    lm, draft, prompt = speculation.reciting_pair(random_llama(recited.VOCAB, 512, 8).model, small)
    ratio = speculation.against_mlx_lm(lm, draft, prompt, 160, turns).ratio
    what = "a recited text, 8 layers of 512 with a draft of 2 of 128: the same"
    yield at_least(what, ratio.median, str(ratio), 1.05)
    for device in simulated.DEVICES:
        times = speculation.against_mlx_lm_on(device, shape, simulated.SMALL)
        what = f"the same, {device.name}, {shape.name} with a draft of {simulated.SMALL.name}"
        yield Figure(what, f"{times:.3f}")
    wide = random_llama(WIDE, 64, 2)
    for name, model, tokens in (("demo", demo(), 240), ("150k vocabulary", wide, 120)):
        ratio = speculation.in_vain(model, tokens, turns).ratio
        cost = (1 / ratio.median - 1) * 100
        yield at_most(
            f"{name}: the cost of drafts that are never accepted",
            cost,
            f"{cost:+.1f} % (speed over that without: {ratio})",
            2,
            " %",
        )
    for device in simulated.DEVICES:
        cost = 100 * (speculation.in_vain_on(device, shape, 240) - 1)
        what = f"{device.name}, {shape.name}: the same of 240 tokens"
        yield at_most(what, cost, f"{cost:+.1f} %", 2, " %")


def run_control(turns: int) -> Iterator[Figure]:
    """What controllers cost on the host."""
    lm = demo()
    for name, mask in control.masks(lm).items():
        cost = min(control.host_work(lm, mask, 4_000) for _ in range(3))
        what = f"a trivial controller, mask as {name}: host work a token, the row's included"
        yield at_most(what, cost, f"{cost:.1f} µs", 20, " µs")
    cost = min(control.program_work(lm, 4_000) for _ in range(3))
    yield at_most("a program that generates freely: the same", cost, f"{cost:.1f} µs", 20, " µs")
    ratio = control.streams(lm, 60, turns).ratio
    yield Figure("tokens per second over a batch of one without a controller", str(ratio))


def run_server(turns: int) -> Iterator[Figure]:
    """Whole servers, with their clients."""
    turns = max(2, turns // 2)
    with serving.both() as servers:
        for clients, target in ((1, 1.0), (4, None), (16, None)):
            yield from _served(servers, clients, turns, target, mixed=False)
        yield from _served(servers, 16, turns, 1.3, mixed=True)
        cost = serving.cost_of_http(servers[0], turns)
        found = f"{cost.median:.0f} µs ({cost.low:.0f} to {cost.high:.0f})"
        yield Figure("1 client: cost of the HTTP layer a streamed token", found)
        ours, theirs = (str(server.resets) for server in servers)
        yield Figure("connections of good requests that were reset", f"{ours}; mlx_lm's: {theirs}")
        for what, (ours, theirs) in serving.bad_requests(servers).items():
            good = ours[0] in "24" and "died" not in ours
            yield Figure(what, f"{ours}; mlx_lm.server: {theirs}", "answered, and lives", good)


def _served(
    servers: tuple[serving.Server, serving.Server],
    clients: int,
    turns: int,
    target: float | None,
    *,
    mixed: bool,
) -> Iterator[Figure]:
    found, first = serving.throughput(servers, clients, turns, mixed=mixed)
    kind = "16 different samplers" if mixed else "the same sampler"
    what = f"{clients} clients, {kind}: requests per second over mlx_lm.server's"
    if target is None:
        yield Figure(what, str(found.ratio))
    else:
        yield at_least(what, found.ratio.median, str(found.ratio), target)
    yield Figure("the same: their time to first token over ours", str(first))


def run_agents(scale: float, *, each: bool = False) -> Iterator[Figure]:
    """Sessions of agents against servers; ``each``: what came of each request, too."""
    for model in agents.MODELS:
        found = agents.replay(model, scale)
        for what, text in found.each() if each else ():
            yield Figure(f"{model.name}: {what}", text)
        memory, folder, peer = found
        what = f"{model.name}: prompt tokens run over new ones"
        text = f"{memory.account}; mlx_lm.server: {peer.account}"
        yield at_most(what, memory.over_new, text, model.most)
        what = "the same with --cache-dir, where a restart makes nothing new"
        yield at_most(what, folder.over_new, folder.account, model.most)
        text = f"{memory.lost:,}; mlx_lm.server: {peer.lost:,}"
        yield Figure("tokens that the restart makes new without it", text)
        ratio = memory.waited / peer.waited
        text = f"{ratio:.2f}: {memory.waited:.2f} s over {peer.waited:.2f} s"
        what = "sum of the times to the first token over mlx_lm.server's"
        yield at_most(what, ratio, f"{text}; request by request {found.waits()}", 1.0)
        ratio = folder.waited / peer.waited
        yield at_most(
            "the same with --cache-dir", ratio, f"{ratio:.2f}: {folder.waited:.2f} s", 1.0
        )


def run_disk(turns: int) -> Iterator[Figure]:
    """Prefixes on disk."""
    for name, shape in disk.MODELS.items():
        with tempfile.TemporaryDirectory(prefix="bench-") as folder:
            found = disk.measured(shape, Path(folder), max(2, turns // 5))
        size = f"{found.nbytes / 1e6:.0f} MB"
        first = found.first
        ratio = first.ours.median / first.theirs.median
        text = f"{ratio:.3f}: {first.ours.median:.2f} s over {first.theirs.median:.2f} s"
        what = (
            f"{name}: first token after {disk.TOKENS:,} tokens from disk ({size}) over running them"
        )
        yield at_most(what, ratio, text, 0.1)
        read, written = (
            f"{rate.median / 1e6:.0f} MB/s ({rate.low / 1e6:.0f} to {rate.high / 1e6:.0f})"
            for rate in (found.read, found.written)
        )
        yield Figure("read and checked", read)
        yield Figure("written", written)
        what = "tokens a second of a row meanwhile, over those beside a thread that only hashes"
        yield at_least(what, found.stalled.median, str(found.stalled), 0.9)
        yield Figure("the same, over those without", str(found.beside))


def run_simulate(_: int) -> Iterator[Figure]:
    """The scheduler on devices that are only reckoned with, beside mlx-lm's policy."""
    for device, shape in itertools.product(simulated.DEVICES, simulated.SHAPES):
        alone = simulate.alone(device, shape, simulate.ONE.arriving[0].prompt)
        beside = simulate.ours(device, shape, simulate.ONE).first[0]
        what = f"{device.name}, {shape.name}: {simulate.ONE.name}: time over that alone"
        yield at_most(what, beside / alone, f"{beside / alone:.2f}", 1.5)
        rates = [
            simulate.ours(device, shape, load).rate for load in (simulate.FORCED, simulate.FREE)
        ]
        what = f"{device.name}, {shape.name}: {simulate.FORCED.name}: tokens/s over unconstrained"
        yield at_least(what, rates[0] / rates[1], f"{rates[0] / rates[1]:.2f}", 1.0)
        for load in simulate.WORKLOADS:
            what = f"{device.name}, {shape.name}: {load.name}"
            peer = simulate.theirs(device, shape, load)
            yield Figure(what, f"{simulate.ours(device, shape, load)}; mlx-lm's policy: {peer}")


def run_machines(turns: int) -> Iterator[Figure]:
    """Several machines: two ranks here, and what is to be expected of Macs."""
    turns = max(2, turns // 2)
    with machines.bench(machines.WHOLE, turns) as bench:
        for rows in (1, 4, 16):
            ratio = bench.speed(rows).ratio
            what = f"two ranks, {rows} rows: steps a second over mlx-lm's two ranks"
            yield at_least(what, ratio.median, str(ratio), 1.0)
        for rows in (1, 16):
            cost = bench.cost(rows)
            step, alone, theirs, their_alone = (1e3 * each.median for each in cost.steps)
            yield Figure(
                f"two ranks, {rows} rows: a step over that of its part alone; sums by themselves",
                f"{step:.1f} over {alone:.1f} ms, mlx-lm's {theirs:.1f} over {their_alone:.1f} ms; "
                f"{1e3 * cost.sums.median:.1f} ms",
            )
            told = f"{cost.told:.0f} in {cost.messages:.1f} messages; {cost.summed:,} in sums"
            yield Figure(
                "the same: bytes that a rank sends a step, prompts and ends included", told
            )
    with machines.bench(machines.DEEP, turns) as bench:
        for rows in (1, 16):
            cost = bench.cost(rows)
            what = f"32 layers, {rows} rows: host time of rank 0 over that of its part alone"
            text = f"{cost.beside} beside the graph of the sums, {cost.work} with it"
            more = f"{text}: {1e6 * cost.host:.0f} µs a step"
            yield at_most(what, cost.beside.median, more, 1.1)
    found = machines.drafts(turns)
    whole, cut = (1e3 * each.median for each in (found.ours, found.theirs))
    text = f"{found.ratio}: {whole:.1f} ms, {cut:.1f} ms cut"
    yield Figure("a small model that drafts: its speed whole in one process over cut", text)
    yield from _expected()


def _expected() -> Iterator[Figure]:
    for mac, model in itertools.product(expected.MACS, expected.MODELS):
        for cluster in expected.clusters(mac):
            found = "does not fit"
            if cluster.holds(model, 4):
                one, many = (cluster.tokens(model, 4, rows) for rows in (1, 16))
                prompt = cluster.prompt(model, 4)
                found = f"1 row {one:.0f}, 16 rows {many:,.0f}, a prompt {prompt:,.0f} tokens/s"
            yield Figure(f"{model.name}, 4 bits, {cluster}", found)
    for published in expected.PUBLISHED:
        value = published.expected()
        text = f"{value / published.found:.2f}: {value:.1f} over {published.found:.1f} tokens/s"
        yield Figure(f"{published}: over that published ({published.source})", text)
    for mac, link in itertools.product(expected.MACS, LINKS):
        for count in (2, 4):
            whole, cut = (1e3 * each for each in expected.draft_passes(mac, link, count))
            what = f"a draft model of 0.6B, {expected.Cluster(mac, count, link)}: a pass"
            yield Figure(what, f"{whole:.1f} ms whole on one machine, {cut:.1f} ms cut")


def run_soak(requests: int) -> Iterator[Figure]:
    """A server with a draft model under mixed requests, and what it holds afterwards."""
    limits = ("--cache-bytes", "32MiB", "--log-level", "warning")
    with served("--draft", DRAFT, *limits) as server:
        found = soak.soak(server, requests)
        for sample in found.course():
            text = f"{sample.resident / 1e6:.0f} MB, {sample.kv / 1e6:.0f} MB of it KV"
            yield Figure(f"memory after {sample.requests} requests", text)
        growth = (found.growth - 1) * 100
        warm = min(soak.WARM, requests // 2)
        yield at_most(
            f"growth after the first {warm} of {found.requests} requests, "
            f"{found.requests / found.seconds:.0f} a second",
            growth,
            f"{growth:+.1f} %",
            5,
            " %",
        )
        answers = ", ".join(f"{count} {kind}" for kind, count in sorted(found.answers.items()))
        none = "none"
        for what, texts in (
            (f"answers with another status than theirs ({answers})", found.unexpected),
            (f"of {found.probes.total()} probes: other answers than alone", found.differing),
        ):
            text = none if not texts else f"{len(texts)}, the first: {texts[0]}"
            yield Figure(what, text, none, not texts)
        alive = server.answers()
        yield Figure("a good request afterwards", "answered" if alive else "not", "answered", alive)


def run_hostile(_: int) -> Iterator[Figure]:
    """Clients and processes that do their worst, one after the other."""
    for case, found, met in hostile.run_cases():
        yield Figure(case.name, found, " or ".join(case.wanted), met)


MEASUREMENTS: dict[str, Callable[..., Iterator[Figure]]] = {
    "single": run_single,
    "overhead": run_overhead,
    "masks": run_masks,
    "rewinds": run_rewinds,
    "passes": run_passes,
    "batch": run_batch,
    "primitives": run_primitives,
    "calls": run_calls,
    "prefix": run_prefix,
    "kv": run_kv,
    "speculation": run_speculation,
    "control": run_control,
    "simulate": run_simulate,
    "server": run_server,
    "agents": run_agents,
    "disk": run_disk,
    "machines": run_machines,
    "soak": run_soak,
    "hostile": run_hostile,
}
LONG = ("agents", "disk", "machines", "soak", "hostile")  # run only if named; hostile follows soak


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/bench", description=__doc__.splitlines()[0])
    listed = f"{', '.join(MEASUREMENTS)} (all but the last five, which take long)"
    parser.add_argument("names", nargs="*", metavar="NAME", help=listed)
    parser.add_argument("--turns", type=int, default=15, help="alternations of each pair (15)")
    parser.add_argument(
        "--requests", type=int, default=20_000, help="of the soak (20000, some 15 minutes)"
    )
    parser.add_argument(
        "--scale", type=float, default=10, help="divides the lengths of the agents' sessions (10)"
    )
    parser.add_argument("--each", action="store_true", help="list each request of the agents, too")
    parser.add_argument("--server", action="store_true", help="the same as the name server")
    parser.add_argument("--strict", action="store_true", help="exit status 1 for a missed target")
    parser.add_argument(
        "--trace",
        type=Path,
        metavar="FILE",
        help="write the timeline of one run of the first comparison that generates in this "
        "process, in Chrome's trace event format",
    )
    arguments = parser.parse_args()
    unknown = set(arguments.names) - set(MEASUREMENTS)
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}")
    if arguments.turns < 2 or arguments.requests < 2:
        parser.error("--turns, --requests: give 2 or more")
    if not 1 <= arguments.scale <= 100:
        parser.error("--scale: give 1 to 100")
    if arguments.trace is None:
        return measure(arguments)
    try:
        traced = Traced(arguments.trace)
    except mlxgen.OptionError as error:
        parser.error(str(error))
    with traced:
        status = measure(arguments)
    if not traced.found:
        parser.error("--trace: nothing of this generates in this process; name single or batch")
    return status


def measure(arguments: argparse.Namespace) -> int:
    """Run what was asked for, and print it; returns the exit status."""
    console = Console(width=150 if not sys.stdout.isatty() else None)
    console.print(f"mlxgen {mlxgen.__version__}, {mx.default_device()}, {platform.processor()}")
    missed = 0
    names = [*arguments.names, *(["server"] if arguments.server else [])]
    if "soak" in names and "hostile" not in names:
        names.append("hostile")
    for name in names or (name for name in MEASUREMENTS if name not in LONG):
        measurement = partial(MEASUREMENTS[name], arguments.turns)
        if name == "soak":
            measurement = partial(run_soak, arguments.requests)
        elif name == "agents":
            measurement = partial(run_agents, arguments.scale, each=arguments.each)
        table = Table("what", "found", "wanted", "", title=name, title_justify="left")
        for figure in measurement():
            sign = "" if figure.met is None else "met" if figure.met else "missed"
            table.add_row(figure.what, figure.found, figure.wanted, sign)
            missed += figure.met is False
        console.print(table)
    return 1 if missed and arguments.strict else 0


if __name__ == "__main__":
    sys.exit(main())
