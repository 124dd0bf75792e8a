"""Drafts: passes a token, speed against mlx-lm with and without drafts, and what they cost in vain.

Owns the workloads and what is measured of them. Must never know how drafts are made. Invariant:
both sides get the same models, prompts and greedy settings, and generate as many tokens; nobody has
seen a text before it is measured, but what passes take is known.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

from mlx_lm import stream_generate

import mlxgen
from mlxgen.engine import DraftCount, all_drafts
from mlxgen.engine.drafts.drafts import Drafter, Drafts
from mlxgen.engine.drafts.guess import Guess
from mlxgen.engine.drafts.policy import Policy
from mlxgen.engine.request.request import Request

from . import recited, simulate
from .alternate import Comparison, compare, timed
from .figures import Figure, at_least, at_most
from .models import WIDE, demo, random_llama
from .recited import Recital, Reciting
from .simulated import DEVICES, SHAPES, SMALL, Device, Shape, SimulatedModel
from .single import PROMPT


def figures(turns: int) -> Iterator[Figure]:
    long = random_llama(recited.VOCAB, 256, 4).model
    over = "tokens per second over mlx-lm's plain decode"
    for load in workloads(long):
        found = drafted(load)
        yield Figure(f"{load.name}: passes, and what stood", str(found), value=found.passes_a_token)
        ratio = against_plain(load, max(3, turns // 3)).ratio
        yield Figure(f"{load.name}: {over}", str(ratio), value=ratio.median)
    shape = SHAPES[1]
    for load, device in itertools.product(workloads(), DEVICES):
        times, found = simulated(load, device, shape)
        what, text = f"{load.name}, {device.name}, {shape.name}: {over}", f"{times:.2f}: {found}"
        if device.name == "M4 Max" and load.target is not None:
            yield at_least(what, times, load.target, text)
        else:
            yield Figure(what, text, value=times)
    lm, draft = demo_pair()
    found = drafted(workloads()[2], draft=draft)
    what = "demo's JSON records, schema, fast-forward and draft model: passes"
    yield at_most(what, found.passes_a_token, 0.4, found)
    ratio = against_mlx_lm(lm, draft, STORY, 80, turns).ratio
    what = "a story, draft model: tokens per second over mlx_lm's speculative decoding"
    yield at_least(what, ratio.median, 1.05, ratio)
    for device in DEVICES:
        what = f"a recited text, {device.name}, {shape.name} with a draft of {SMALL.name}: the same"
        yield at_least(what, against_mlx_lm_on(device, shape, SMALL), 1.0)
    wide = random_llama(WIDE, 64, 2)
    for name, model, tokens in (("demo", demo(), 240), ("150k vocabulary", wide, 120)):
        cost = (1 / in_vain(model, tokens, turns).ratio.median - 1) * 100
        yield at_most(f"{name}: the cost of drafts that are never accepted", cost, 2, unit=" %")
    for device in DEVICES:
        cost = 100 * (in_vain_on(device, shape, 240) - 1)
        what = f"{device.name}, {shape.name}: the same of 240 tokens"
        yield at_most(what, cost, 2, unit=" %")


def demo_pair() -> tuple[mlxgen.LanguageModel, mlxgen.LanguageModel]:
    """The demo model and its draft."""
    return mlxgen.load(), mlxgen.load(Path(str(resources.files("mlxgen") / "demo" / "draft")))


def chat(text: str) -> mlxgen.Chat:
    return mlxgen.Chat([{"role": "user", "content": text}], template={"enable_thinking": False})


STORY = chat("Tell me a story about a fox.")


@dataclass(frozen=True, slots=True)
class Job:
    """A prompt, and what is wanted of the answer; it is recited, if it is given."""

    prompt: list[int]
    options: dict[str, Any]
    recital: Recital | None = None


@dataclass(frozen=True, slots=True)
class Workload:
    """What one person asks for, one after the other. ``target``: times the speed of mlx-lm's plain
    decode that is wanted on a simulated M4 Max with a model of 8B in 4 bits."""

    name: str
    lm: mlxgen.LanguageModel
    jobs: Sequence[Job]
    target: float | None = None


class Drafted(NamedTuple):
    """What came of a workload: ``seconds`` from the first token that was drawn to the last, and
    ``drafts``: who proposed how many tokens, and how many of these stood."""

    tokens: list[int]  # of each job
    seconds: list[float]
    passes: int
    drafts: dict[str, DraftCount]

    @property
    def passes_a_token(self) -> float:
        return self.passes / sum(self.tokens)

    def __str__(self) -> str:
        stood = [f"{name} {100 * a / p:.0f} % of {p}" for name, (p, a) in self.drafts.items() if p]
        return f"{self.passes_a_token:.2f} passes a token; {', '.join(stood) or 'no drafts'}"


def demo_records(lm: mlxgen.LanguageModel) -> list[tuple[list[int], Any]]:
    """The prompts and schemas that the demo model knows."""
    text = (resources.files("mlxgen") / "demo" / "schemas.json").read_text(encoding="utf-8")
    records = json.loads(text).values()
    return [(chat(each["prompt"]).tokens(lm.vocabulary), each["schema"]) for each in records]


def workloads(inner: Any = None) -> list[Workload]:
    """All of them; the texts that are recited take the time of the ``inner`` model."""
    demo = mlxgen.load()
    reciting = mlxgen.LanguageModel(Reciting(inner), recited.tokenizer(), name="reciting")

    def story(hero: str) -> Job:
        prompt = chat(f"Tell me a story about a {hero}.").tokens(demo.vocabulary)
        return Job(prompt, {"max_tokens": 100, "ignore_eos": True})

    def record(prompt: list[int], schema: Any) -> Job:
        spec = mlxgen.JsonSchema(schema, whitespace=None, separators=(", ", ": "))
        return Job(prompt, {"max_tokens": 160, "filters": [spec]})

    def recite(name: str, texts: list[Recital], target: float | None = None) -> Workload:
        options: list[dict[str, Any]]
        options = [{"max_tokens": len(each.text), "ignore_eos": True} for each in texts]
        jobs = [Job(each.prompt, own, each) for each, own in zip(texts, options, strict=True)]
        return Workload(name, reciting, jobs, target)

    return [
        Workload("stories", demo, [story(hero) for hero in ("fox", "cat", "bear")], 1.4),
        recite("copying with edits", recited.copying(), 2.5),
        Workload(
            "JSON records (mlx-lm without their schemas)",
            demo,
            [record(*each) for each in demo_records(demo)],
            1.8,
        ),
        recite("an agent's turns that rewrite a file", recited.rewriting()),
        recite("arithmetic", recited.arithmetic(), 0.99),
    ]


_owners = itertools.count()


def drafted(load: Workload, lm: mlxgen.LanguageModel | None = None, draft: Any = "auto") -> Drafted:
    """What comes of it, each job for somebody whom the model has never seen; ``lm``: the model, if
    it is simulated."""
    lm = lm or load.lm
    found = Drafted([], [], 0, {})
    for job in load.jobs:
        owner = f"bench-{next(_owners)}"
        vars(lm.runtime)["drafts_for"] = partial(
            type(lm.runtime).drafts_for, lm.runtime, owner=owner
        )
        if job.recital is not None:
            lm.model.recite(job.recital)
        stream = lm.stream(job.prompt, temperature=0, draft=draft, **job.options)
        now, began = stream._handle.kv.device.now, 0.0
        for chunk in stream:
            began = began or (0.0 if chunk.forced else now())
        found.seconds.append(now() - began)
        found.tokens.append(len(stream.tokens))
        found = found._replace(
            passes=found.passes + stream.usage.forward_passes,
            drafts=all_drafts([found.drafts, stream.usage.drafts]),
        )
    return found


def against_plain(load: Workload, turns: int) -> Comparison:
    """Seconds on this machine, and those of mlx-lm's plain decode of as many tokens."""
    lengths = drafted(load).tokens

    def theirs() -> float:
        return sum(map(partial(_plain, load.lm), load.jobs, lengths))

    return compare(lambda: sum(drafted(load).seconds), theirs, turns)


def _plain(lm: mlxgen.LanguageModel, job: Job, tokens: int, **options: Any) -> float:
    """Seconds of mlx-lm from the first token to the last."""
    if job.recital is not None:
        lm.model.recite(job.recital)
    lm.tokenizer.eos_token_ids = []
    try:
        stream = stream_generate(lm.model, lm.tokenizer, job.prompt, max_tokens=tokens, **options)
        return timed(stream, tokens)
    finally:
        lm.tokenizer.eos_token_ids = list(lm.vocabulary.eos)


def simulated(load: Workload, device: Device, shape: Shape) -> tuple[float, Drafted]:
    """Times the speed of mlx-lm's plain decode on another device, once it is known what passes
    take there; and what came of it."""
    lm = SimulatedModel(device, shape, load.lm)
    drafted(load, lm)
    found = drafted(load, lm)
    jobs = zip(load.jobs, found.tokens, strict=True)
    plain = sum(simulate.plain(device, shape, len(job.prompt), count - 1) for job, count in jobs)
    return plain / sum(found.seconds), found


def known(told: Recital) -> list[int]:
    """The same text as somebody would say it who knows about four of five tokens."""
    chance = random.Random(4)
    return [each if chance.random() < 0.8 else each + 1 for each in told.text]


def reciting_pair(
    inner: Any = None, small: Any = None
) -> tuple[mlxgen.LanguageModel, mlxgen.LanguageModel, list[int]]:
    """A model that recites, a draft that knows most of it, and the prompt; they take the time of
    the ``inner`` models."""
    (told,) = recited.arithmetic()
    lm, draft = (
        mlxgen.LanguageModel(Reciting(model), recited.tokenizer(), draft="off")
        for model in (inner, small)
    )
    lm.model.recite(told)
    draft.model.recite(told._replace(text=known(told)))
    return lm, draft, told.prompt


def against_mlx_lm_on(device: Device, shape: Shape, small: Shape, count: int = 3) -> float:
    """Times the tokens a second of mlx-lm's speculative decoding on another device, with a draft
    of the ``small`` shape that proposes ``count`` tokens at a time."""
    (told,) = recited.arithmetic()
    lm, draft, prompt = reciting_pair()
    slow = SimulatedModel(device, shape, lm)
    fast = SimulatedModel(device, small, draft, timeline=slow.timeline)
    options = {"max_tokens": len(told.text), "ignore_eos": True, "num_draft_tokens": count}
    job = Job(prompt, options, told)
    (ours,) = drafted(Workload("", slow, [job]), draft=fast).seconds
    stood = [each == said for each, said in zip(told.text, known(told), strict=True)]
    theirs = simulate.speculative(device, shape, small, len(prompt), stood, count)
    return theirs / len(stood) * (len(stood) - 1) / ours


def against_mlx_lm(
    lm: mlxgen.LanguageModel, draft: mlxgen.LanguageModel, prompt: Any, tokens: int, turns: int
) -> Comparison:
    """Seconds for the tokens after the first one, both with the draft model, greedy."""
    ids = list(lm.runtime.prepare(prompt, mlxgen.engine.Options.of({})).history)

    def ours() -> float:
        options: dict[str, Any] = {"max_tokens": tokens, "temperature": 0, "ignore_eos": True}
        return timed(lm.stream(ids, draft=draft, num_draft_tokens=3, **options), tokens)

    def theirs() -> float:
        return _plain(lm, Job(ids, {}), tokens, draft_model=draft.model, num_draft_tokens=3)

    return compare(ours, theirs, turns)


class Wrong(Drafter):
    """A drafter whose tokens never stand: what drafting costs in vain."""

    name = "wrong"
    most = 8

    def __init__(self, vocab_size: int) -> None:
        super().__init__(Policy(self.most))
        self._chance = random.Random(0)
        self._size = vocab_size

    def propose(self, request: Request, count: int) -> Guess | None:
        return Guess([self._chance.randrange(self._size) for _ in range(count)])

    def fork(self) -> Wrong:
        return self


def in_vain(lm: mlxgen.LanguageModel, tokens: int, turns: int) -> Comparison:
    """Seconds with drafts that never stand, against none."""
    wrong, none = (partial(_in_vain, lm, tokens, drafts=each) for each in ([Wrong], []))
    return compare(wrong, none, turns)


def in_vain_on(device: Device, shape: Shape, tokens: int) -> float:
    """The same on another device: times the seconds without."""
    wrong, none = (
        _in_vain(SimulatedModel(device, shape), tokens, drafts=each) for each in ([Wrong], [])
    )
    return wrong / none


def _in_vain(lm: mlxgen.LanguageModel, tokens: int, drafts: Sequence[type[Wrong]]) -> float:
    stream = lm.stream(PROMPT, max_tokens=tokens, temperature=0.7, ignore_eos=True, seed=1)
    stream._handle.drafts = Drafts([made(lm.vocab_size) for made in drafts])
    now = stream._handle.kv.device.now
    next(stream)
    start = now()
    assert sum(1 for _ in stream) == tokens - 1
    return now() - start
