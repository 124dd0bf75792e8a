"""Drafts: passes per token, and speed against mlx-lm with and without drafts.

Both sides get the same models, prompts and greedy settings, and generate the same number of tokens;
no text was seen before it is measured. The texts of ``recitals.json`` are recited on a simulated
device: the next token depends on the place alone, so the text is the same whatever is fed. They are
real prose and real code, with real repetitions.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterator, Sequence
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import mlx.core as mx

import mlxgen
from mlxgen.engine import DraftCount, all_drafts

from . import kit
from .architectures import read
from .simulate import DEVICES, SHAPES, SimulatedModel, Tiny

DEVICE, SHAPE = DEVICES[1], SHAPES[1]  # an M4 Max with an 8B model at 4 bits
RECITALS: list[dict[str, Any]] = read("recitals")
OVER = "tokens per second over mlx-lm's plain decode"


def figures(turns: int, real: Path | None) -> Iterator[kit.Figure]:
    few, lm = max(3, turns // 3), mlxgen.load()
    for load in real_workloads(real) if real is not None else ():
        ratio = against_plain(load, few)
        yield kit.at_least(f"{load.name}: {OVER}", ratio, load.target)
    for load in recitals():
        times, found = simulated(load)
        what = f"{load.name}, {DEVICE.name}, {SHAPE.name}: tokens per second over those undrafted"
        yield kit.at_least(what, times, load.target, f"{times:.2f}: {found}")
    draft = mlxgen.load(kit.DRAFT)
    found = drafted(records(lm), draft=draft)
    what = "demo's JSON records, schema, fast-forward and draft model: passes a token"
    yield kit.at_most(what, found.passes_a_token, 0.4, found)
    ids, count = asking(lm, "Tell me a story about a fox."), {"num_draft_tokens": 3}
    peers = {"draft_model": draft.model, **count}
    case = kit.Case(lm, ids, 80, [{"draft": draft, **count}], peers)
    what = "a story, draft model: tokens per second over mlx_lm's speculative decoding"
    yield kit.at_least(what, case.timed(turns, after=1).ratio, 1.05)


# ---- workloads ---------------------------------------------------------------------------------


class Job(NamedTuple):
    """A prompt, the options of its answer, and the ``text`` to recite, if any."""

    prompt: list[int]
    options: dict[str, Any]
    text: list[int] = []  # noqa: RUF012


class Workload(NamedTuple):
    """Jobs that one user sends one after the other. ``target``: the speed that drafts should reach,
    relative to none (on the simulated device if texts are recited)."""

    name: str
    lm: mlxgen.LanguageModel
    jobs: Sequence[Job]
    target: float = 1.0


def asking(lm: mlxgen.LanguageModel, text: str) -> list[int]:
    messages = [{"role": "user", "content": text}]
    chat = mlxgen.Chat(messages, template={"enable_thinking": False})
    return list(chat.tokens(lm.vocabulary))


def records(lm: mlxgen.LanguageModel) -> Workload:
    """The demo model's records, under their schemas."""
    text = (resources.files("mlxgen") / "demo" / "schemas.json").read_text(encoding="utf-8")
    jobs = []
    for each in json.loads(text).values():
        spec = mlxgen.JsonSchema(each["schema"], whitespace=None, separators=(", ", ": "))
        jobs.append(Job(asking(lm, each["prompt"]), {"max_tokens": 160, "filters": [spec]}))
    return Workload("JSON records", lm, jobs)


def real_workloads(folder: Path) -> list[Workload]:
    """Copies and new text, for a real model."""
    lm, text = mlxgen.load(folder), RECITALS[0]["jobs"][0]["text"][:1500]
    asked = (
        ("copying", f"Repeat this text word for word:\n{text}", 2.3),
        ("correcting", f"Fix the typos in this text and print it whole:\n{text}", 1.5),
        ("new text", "Describe a market in the morning.", 1.0),
    )
    return [
        Workload(f"{folder.name}, {name}", lm, [Job(asking(lm, ask), {"max_tokens": 200})], aim)
        for name, ask, aim in asked
    ]


# ---- texts that are recited ----------------------------------------------------------------------


def recitals() -> list[Workload]:
    """A copy with one word in 20 changed; the turns of an agent that rewrites a file, a line in 12
    of which changes each time; and sums, of which nothing is known before."""
    tokenizer = mlxgen.load().tokenizer
    lm = mlxgen.LanguageModel(Reciting(), tokenizer, name="reciting")

    def job(prompt: str, text: str) -> Job:
        return reciting(
            *(tokenizer.encode(each, add_special_tokens=False) for each in (prompt, text))
        )

    return [
        Workload(told["name"], lm, [job(**each) for each in told["jobs"]], told["target"])
        for told in RECITALS
    ]


def reciting(prompt: Sequence[int], text: Sequence[int]) -> Job:
    """The job of reciting a text after a prompt."""
    return Job([*prompt], {"max_tokens": len(text), "ignore_eos": True}, [*text])


class Reciting(Tiny):
    """Recites a job's text."""

    vocab, peak = 1_024, 50.0  # that of the demo model

    def __init__(self) -> None:
        super().__init__()
        self.said = mx.zeros(self.vocab, mx.int32)

    def recite(self, job: Job) -> None:
        """Recite this job from now on."""
        whole = [*job.prompt[1:], *job.text]
        self.said = mx.array([*whole, *whole[-1:] * self.vocab])

    def following(self, inputs: mx.array, start: int) -> mx.array:
        return self.said[None, start : start + inputs.shape[1]]


# ---- measuring ---------------------------------------------------------------------------------


class Drafted(NamedTuple):
    """The result of a workload: ``seconds`` from the first drawn token to the last, and ``drafts``:
    the proposed and accepted tokens of each drafter."""

    tokens: list[int]  # of each job
    seconds: float
    passes: int
    drafts: dict[str, DraftCount]

    @property
    def passes_a_token(self) -> float:
        return self.passes / sum(self.tokens)

    def __str__(self) -> str:
        stood = [f"{name} {100 * a / p:.0f} % of {p}" for name, (p, a) in self.drafts.items() if p]
        return f"{self.passes_a_token:.2f} passes a token; {', '.join(stood) or 'no drafts'}"


_owners = itertools.count()


def drafted(load: Workload, lm: mlxgen.LanguageModel | None = None, draft: Any = "auto") -> Drafted:
    """Run a workload, each job for a new owner, whose texts the model has never seen; ``lm``: the
    model, if it is simulated."""
    lm = lm or load.lm

    def now() -> float:
        return lm.timeline.now if isinstance(lm, SimulatedModel) else time.perf_counter()

    tokens, seconds, usages = [], 0.0, []
    for job in load.jobs:
        runtime, owner = lm.runtime, f"bench-{next(_owners)}"
        vars(runtime)["drafts_for"] = partial(type(runtime).drafts_for, runtime, owner=owner)
        if job.text:
            lm.model.recite(job)
        stream, began = lm.stream(job.prompt, temperature=0, draft=draft, **job.options), 0.0
        for chunk in stream:
            began = began or (0.0 if chunk.forced else now())
        seconds += now() - began
        tokens.append(len(stream.tokens))
        usages.append(stream.usage)
    drafts = all_drafts(usage.drafts for usage in usages)
    return Drafted(tokens, seconds, sum(usage.forward_passes for usage in usages), drafts)


def against_plain(load: Workload, turns: int) -> kit.Spread:
    """The speed relative to mlx-lm's plain decode of the same number of tokens, on this machine."""
    lengths = drafted(load).tokens

    def plain() -> float:
        return sum(
            kit.timed(kit.Case(load.lm, job.prompt, tokens).theirs(), tokens, after=1)
            for job, tokens in zip(load.jobs, lengths, strict=True)
        )

    return kit.compare(lambda: drafted(load).seconds, plain, turns).ratio


def simulated(load: Workload) -> tuple[float, Drafted]:
    """The speed relative to that without drafts, on the simulated device and after a first run that
    shows how long passes take there; and the result."""
    lm = SimulatedModel(DEVICE, SHAPE, load.lm)
    drafted(load, lm)
    found, without = drafted(load, lm), drafted(load, lm, "off")
    return without.seconds / found.seconds, found
