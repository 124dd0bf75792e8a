"""Drafts: passes a token, speed against mlx-lm with and without drafts.

Both sides get the same models, prompts and greedy settings, and generate as many tokens; nobody has
seen a text before it is measured. Most texts are recited: the token after each place is given by
the place alone, so whatever is fed, the text is the same. They are made of Python's standard
library: real prose and real code, with real repetitions.
"""

from __future__ import annotations

import inspect
import itertools
import json
import pickletools
import random
import re
import shlex
import statistics
import textwrap
import time
from collections.abc import Iterator, Sequence
from functools import cache, partial
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.cache import KVCache
from mlx_lm.tokenizer_utils import TokenizerWrapper
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

import mlxgen
from mlxgen.engine import DraftCount, all_drafts

from .kit import (
    DRAFT,
    Comparison,
    Figure,
    at_least,
    at_most,
    compare,
    ours,
    random_llama,
    theirs,
    timed,
    wrapped,
)
from .simulate import DEVICES, SHAPES, Device, Shape, SimulatedModel

VOCAB = 4_096
PEAK = 50.0  # added to the logit of the token that is recited
OVER = "tokens per second over mlx-lm's plain decode"


def figures(turns: int, real: Path | None) -> Iterator[Figure]:
    if real is not None:
        yield from _of_a_real_model(real, max(3, turns // 3))
    for load in workloads(random_llama(VOCAB, 256, 4).model):
        found = drafted(load)
        yield Figure(f"{load.name}: passes, and what stood", str(found), value=found.passes_a_token)
        ratio = against_plain(load, max(3, turns // 3)).ratio
        yield Figure(f"{load.name}: {OVER}", str(ratio), value=ratio.median)
    shape = SHAPES[1]
    for load, device in itertools.product(recitals(), DEVICES):
        times, found = simulated(load, device, shape)
        what = f"{load.name}, {device.name}, {shape.name}: tokens per second over those undrafted"
        if device.name == "M4 Max" and load.target is not None:
            yield at_least(what, times, load.target, f"{times:.2f}: {found}")
        else:
            yield Figure(what, f"{times:.2f}: {found}", value=times)
    lm, draft = mlxgen.load(), mlxgen.load(DRAFT)
    found = drafted(demo_records(lm), draft=draft)
    what = "demo's JSON records, schema, fast-forward and draft model: passes a token"
    yield at_most(what, found.passes_a_token, 0.4, found)
    ratio = against_mlx_lm(lm, draft, _chat("Tell me a story about a fox."), 80, turns).ratio
    what = "a story, draft model: tokens per second over mlx_lm's speculative decoding"
    yield at_least(what, ratio.median, 1.05, ratio)


# ---- texts -------------------------------------------------------------------------------------


class Job(NamedTuple):
    """A prompt, and what is wanted of the answer, or the ``text`` that it is to be."""

    prompt: list[int]
    options: dict[str, Any]
    text: list[int] = []  # noqa: RUF012


def reciting(prompt: str, text: str) -> Job:
    """Have a text said after a prompt."""
    ids = [list(tokenizer().encode(each, add_special_tokens=False)) for each in (prompt, text)]
    return recited(*ids)


def recited(prompt: list[int], text: list[int]) -> Job:
    return Job(prompt, {"max_tokens": len(text), "ignore_eos": True}, text)


@cache
def tokenizer() -> TokenizerWrapper:
    """A byte-level tokenizer that was trained on some modules of the standard library."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB,
        special_tokens=["<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    modules = (inspect, json.decoder, json.encoder, pickletools, random, shlex, statistics)
    made.train_from_iterator(map(inspect.getsource, (*modules, textwrap)), trainer)
    return wrapped(made, "<|end|>")


def copying(words: int = 320) -> list[Job]:
    """A passage of prose that is repeated with one word in 20 changed."""
    said = itertools.chain.from_iterable(each.doc.split() for each in pickletools.opcodes)
    passage = list(itertools.islice(said, words))
    chance, others = random.Random(1), re.findall(r"[a-z]{4,}", inspect.getsource(shlex))
    edited = [chance.choice(others) if chance.random() < 0.05 else word for word in passage]
    prompt = f"Copy this and correct the words:\n{' '.join(passage)}\n\nCorrected:\n"
    return [reciting(prompt, " ".join(edited))]


def rewriting(turns: int = 2, lines: int = 45) -> list[Job]:
    """The turns of an agent that rewrites a file, a line in 12 of which changes each time.

    The file as it was is in the prompt, as are the turns before."""
    source = inspect.getsource(statistics.NormalDist).splitlines()[:lines]
    new = inspect.getsource(textwrap).splitlines()[40:]
    chance = random.Random(2)

    def changed(line: str) -> list[str]:
        if chance.random() > 1 / 12:
            return [line]
        words = line.split(" ")
        words[chance.randrange(len(words))] = chance.choice(new).strip().split(" ")[0]
        return chance.choice(([], [line, chance.choice(new)], [" ".join(words)]))

    said = "Rewrite the file as you are asked to, whole.\n"
    found = []
    for turn in range(turns):
        said += f"\nuser, {turn}: the file is now\n" + "\n".join(source) + "\nassistant:\n"
        source = list(itertools.chain.from_iterable(map(changed, source)))
        answer = "\n".join(source)
        found.append(reciting(said, answer))
        said += answer
    return found


def arithmetic(sums: int = 40) -> list[Job]:
    """Numbers that are added, of which nothing is known before."""
    chance = random.Random(3)
    pairs = [(chance.randrange(10**9), chance.randrange(10**9)) for _ in range(sums)]
    asked = "\n".join(f"{a} + {b}" for a, b in pairs)
    return [reciting(f"Add:\n{asked}\n", "\n".join(str(a + b) for a, b in pairs))]


class Reciting(nn.Module):
    """Says what it is given, and takes the time of the ``inner`` model, if there is one."""

    def __init__(self, inner: Any = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.inner = inner
        self.layers = [None] if inner is None else inner.layers
        self._following = mx.zeros(VOCAB, mx.int32)

    def recite(self, job: Job) -> None:
        """Have this said from now on."""
        whole = [*job.prompt[1:], *job.text]
        self._following = mx.array([*whole, *whole[-1:] * VOCAB])

    def make_cache(self) -> list[Any]:
        return [KVCache() for _ in self.layers]

    def __call__(self, inputs: mx.array, cache: list[Any]) -> mx.array:
        start, count = cache[0].offset, inputs.shape[1]
        if self.inner is None:
            keys = inputs.astype(mx.float32)[:, None, :, None]
            cache[0].update_and_fetch(keys, keys)
            logits = mx.zeros((1, 1, VOCAB))
        else:
            logits = self.inner(inputs, cache)
        following = self._following[start : start + count]
        return logits + mx.where(mx.arange(VOCAB) == following[None, :, None], PEAK, 0.0)


# ---- workloads ---------------------------------------------------------------------------------


class Workload(NamedTuple):
    """What one person asks for, one after the other. ``target``: how many times as fast as without
    drafts it should be on a simulated M4 Max with a model of 8B in 4 bits."""

    name: str
    lm: mlxgen.LanguageModel
    jobs: Sequence[Job]
    target: float | None = None


def workloads(inner: Any) -> list[Workload]:
    """All of them; the texts that are recited take the time of the ``inner`` model."""
    lm = mlxgen.load()
    asked = [f"Tell me a story about a {hero}." for hero in ("fox", "cat", "bear")]
    options = {"max_tokens": 100, "ignore_eos": True}
    stories = [Job(_chat(each).tokens(lm.vocabulary), options) for each in asked]
    return [Workload("stories", lm, stories), demo_records(lm), *recitals(inner)]


def _chat(text: str) -> mlxgen.Chat:
    return mlxgen.Chat([{"role": "user", "content": text}], template={"enable_thinking": False})


def demo_records(lm: mlxgen.LanguageModel) -> Workload:
    """The records that the demo model knows, under their schemas."""
    text = (resources.files("mlxgen") / "demo" / "schemas.json").read_text(encoding="utf-8")
    jobs = []
    for each in json.loads(text).values():
        spec = mlxgen.JsonSchema(each["schema"], whitespace=None, separators=(", ", ": "))
        prompt = _chat(each["prompt"]).tokens(lm.vocabulary)
        jobs.append(Job(prompt, {"max_tokens": 160, "filters": [spec]}))
    return Workload("JSON records (mlx-lm without their schemas)", lm, jobs)


def recitals(inner: Any = None) -> list[Workload]:
    lm = mlxgen.LanguageModel(Reciting(inner), tokenizer(), name="reciting")
    texts = (
        ("copying with edits", copying(), 2.5),
        ("an agent's turns that rewrite a file", rewriting(), None),
        ("arithmetic", arithmetic(), 0.99),
    )
    return [Workload(name, lm, jobs, aim) for name, jobs, aim in texts]


# ---- measuring ---------------------------------------------------------------------------------


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


_owners = itertools.count()


def drafted(load: Workload, lm: mlxgen.LanguageModel | None = None, draft: Any = "auto") -> Drafted:
    """What comes of it, each job for somebody whom the model has never seen; ``lm``: the model, if
    it is simulated."""
    lm = lm or load.lm
    now = lm.timeline.read if isinstance(lm, SimulatedModel) else time.perf_counter
    found = Drafted([], [], 0, {})
    for job in load.jobs:
        owner = f"bench-{next(_owners)}"
        vars(lm.runtime)["drafts_for"] = partial(
            type(lm.runtime).drafts_for, lm.runtime, owner=owner
        )
        if job.text:
            lm.model.recite(job)
        stream, began = lm.stream(job.prompt, temperature=0, draft=draft, **job.options), 0.0
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

    def plain() -> float:
        return sum(map(partial(_plain, load.lm), load.jobs, lengths))

    return compare(lambda: sum(drafted(load).seconds), plain, turns)


def _plain(lm: mlxgen.LanguageModel, job: Job, tokens: int, **options: Any) -> float:
    """Seconds of mlx-lm from the first token to the last."""
    if job.text:
        lm.model.recite(job)
    return timed(theirs(lm, job.prompt, tokens, **options), tokens, after=1)


def simulated(load: Workload, device: Device, shape: Shape) -> tuple[float, Drafted]:
    """Times the speed without drafts on another device, once it is known what passes take there;
    and what came of it."""
    lm = SimulatedModel(device, shape, load.lm)
    drafted(load, lm)
    found, plain = drafted(load, lm), drafted(load, lm, "off")
    return sum(plain.seconds) / sum(found.seconds), found


def against_mlx_lm(
    lm: mlxgen.LanguageModel,
    draft: mlxgen.LanguageModel,
    chat: mlxgen.Chat,
    tokens: int,
    turns: int,
) -> Comparison:
    """Seconds for the tokens after the first one, both with the draft model, greedy."""
    ids = list(chat.tokens(lm.vocabulary))

    def own() -> float:
        return timed(ours(lm, ids, tokens, draft=draft, num_draft_tokens=3), tokens, after=1)

    def other() -> float:
        return _plain(lm, Job(ids, {}), tokens, draft_model=draft.model, num_draft_tokens=3)

    return compare(own, other, turns)


def _of_a_real_model(folder: Path, turns: int) -> Iterator[Figure]:
    """A model of the reader's, with the default drafts: copies, and text that is new."""
    lm = mlxgen.load(folder)
    text = " ".join(itertools.chain.from_iterable(each.doc.split() for each in pickletools.opcodes))
    asked = (
        ("copying", f"Repeat this text word for word:\n{text[:1500]}", 2.3),
        ("correcting", f"Fix the typos in this text and print it whole:\n{text[:1500]}", 1.5),
        ("new text", "Describe a market in the morning.", 1.0),
    )
    for name, prompt, aim in asked:
        ids = list(mlxgen.Chat([{"role": "user", "content": prompt}]).tokens(lm.vocabulary))
        load = Workload(name, lm, [Job(ids, {"max_tokens": 200})])
        ratio = against_plain(load, turns).ratio
        yield at_least(f"{folder.name}, {name}: {OVER}", ratio.median, aim, ratio)
