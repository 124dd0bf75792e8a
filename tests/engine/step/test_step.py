"""Rows that come, go, go back and branch at any moment say what each of them says alone."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from itertools import product
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mlx_lm.tokenizer_utils import BPEStreamingDetokenizer, TokenizerWrapper

import mlxgen
from mlxgen import Choice, JsonSchema, LanguageModel, MlxgenError, PostSamplingResult, Regex
from mlxgen.engine.chunk import Chunk, FinishReason
from mlxgen.engine.kv import KV
from mlxgen.engine.limits import Limits
from mlxgen.engine.options import Options
from mlxgen.engine.request.accept import rewind
from mlxgen.engine.request.request import Request
from mlxgen.engine.scheduling.scheduler import Scheduler
from mlxgen.engine.step.drawn import Event
from mlxgen.engine.step.handle import Handle
from mlxgen.engine.step.runner import Runner
from mlxgen.engine.step.step import Loop
from mlxgen.errors import CapacityError, QueueFullError, StateError
from tests.fakes import alphabet_tokenizer
from tests.fakes.architectures import VOCAB, cache_kinds

from ...effort import tries

KINDS = [*cache_kinds(), "demo"]
END = ord("@")  # a token that the small models have


@cache
def model_with(kind: str) -> LanguageModel:
    if kind == "demo":
        return mlxgen.load()
    model, make_cache = cache_kinds()[kind]()
    wrapped = alphabet_tokenizer()._tokenizer
    tokenizer = TokenizerWrapper(wrapped, BPEStreamingDetokenizer, eos_token_ids=[END])
    lm = LanguageModel(model, tokenizer)
    lm.runtime.make_cache = make_cache  # type: ignore[method-assign]
    return lm


# ---- what may be asked for


def resampling(result: PostSamplingResult) -> None:
    result.resample = result.attempt == 0 and result.position % 3 == 1


def stepping_back(result: PostSamplingResult) -> None:
    result.rewind = 3 if result.attempt == 0 and result.position % 5 == 4 else 0


def going_far_back(result: PostSamplingResult) -> None:
    result.rewind = 14 if result.attempt == 0 and result.position % 16 == 15 else 0


def putting_others(result: PostSamplingResult) -> None:
    if result.position % 4 == 2:
        result.sampled_token = 65 + result.position % 20


def looking(result: PostSamplingResult) -> None:
    if result.sampled_prob < 0.02 and result.attempt < 2 and len(result.candidate_probs) > 1:
        result.resample, result.exclude = True, [result.sampled_token]


FILTERS: list[dict[str, Any]] = [
    {"filters": [Regex(r"[0-9A-F ]{3,30}")]},
    {"filters": [Regex(r"ABCDEFGH[0-9]{2}IJKLMNOPQ[0-9]+;THE END( AND AGAIN AND AGAIN)?")]},
    {"filters": [JsonSchema({"type": "array", "items": {"type": "integer"}, "minItems": 1})]},
    {"filters": [Choice(["A", "AB", "NO WAY"])]},
    {"filters": [Regex("[A-Z]+"), Regex("[A-M]*[0-9]?")]},
    {"filters": [JsonSchema({"type": "array", "items": {"type": "integer"}})], "close_json": True},
]
HOOKS: list[dict[str, Any]] = [
    {"hooks": resampling},
    {"hooks": stepping_back, "hold_tokens": 4},
    {"hooks": going_far_back, "hold_tokens": 16},
    {"hooks": going_far_back, "allow_retract": True},
    {"hooks": looking},
]
STEERING = st.one_of(
    st.just({}),
    st.sampled_from(FILTERS),
    st.sampled_from([*HOOKS, {"hooks": putting_others}]),
    st.builds(lambda a, b: {**a, **b}, st.sampled_from(FILTERS), st.sampled_from(HOOKS)),
)
REQUIRED = {
    "max_tokens": st.sampled_from([5, 1, 12, 24]),
    "seed": st.integers(0, 1 << 40),
    "temperature": st.sampled_from([0.0, 0.7, 1.5]),
}
OPTIONAL = {
    "top_p": st.sampled_from([0.3, 0.9]),
    "top_k": st.sampled_from([1, 40]),
    "min_p": st.just(0.05),
    "repetition_penalty": st.just(1.3),
    "frequency_penalty": st.just(0.5),
    "dry_multiplier": st.just(4.0),
    "dry_allowed_length": st.just(1),
    "logit_bias": st.dictionaries(st.integers(0, 90), st.sampled_from([-100.0, 5.0]), max_size=3),
    "top_logprobs": st.sampled_from([0, 3]),
    "stop": st.sampled_from(["A", "BC", "1", "e"]),
    "banned": st.sampled_from([["B"], ["5", "CD"], [re.compile("[A-F]")], ["e", " t"]]),
    "min_tokens": st.just(1),
    "ignore_eos": st.just(True),
    "heal": st.just(True),
}


@st.composite
def options(draw: st.DrawFn) -> dict[str, Any]:
    plain = draw(st.fixed_dictionaries(REQUIRED, optional=OPTIONAL))
    return {**plain, **draw(STEERING)}


COMMON = [(7 * i) % VOCAB for i in range(70)]
PROMPTS = st.one_of(
    st.integers(1, 70).map(lambda length: COMMON[:length]),
    st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=20),
    st.just([5] * 300),
)


# ---- what was done, and what a caller has seen


class Deed(NamedTuple):
    """Something that a caller did to a row when its ``mark`` was this; ``to`` None: a fork."""

    mark: tuple[int, ...]
    to: int | None


def mark(row: Request) -> tuple[int, ...]:
    """How far a row has come; no two draws leave the same."""
    return row.position, row.tally.rewound, row.tally.redraws, row.tally.forced


@dataclass
class Seen:
    text: str = ""
    tokens: list[int] = field(default_factory=list)
    chunks: list[Chunk] = field(default_factory=list)
    reason: FinishReason | None = None
    error: str = ""

    def copy(self) -> Seen:
        return Seen(self.text, list(self.tokens), list(self.chunks))

    def take(self, chunks: list[Chunk]) -> None:
        for chunk in chunks:
            assert self.reason is None, "a chunk behind the last one"
            self.text = self.text[: len(self.text) - chunk.retract] + chunk.text
            assert chunk.index <= len(self.tokens), "a token is missing"
            self.keep(chunk.index)
            if chunk.token is not None:
                self.tokens.append(chunk.token)
            self.chunks.append(chunk)
            self.reason = chunk.finish_reason

    def rewound(self, row: Request) -> None:
        self.text = row.outbox.text
        if row.finish_reason is None:  # else it was taken to where it ended, which changes nothing
            self.reason = None
        self.keep(row.outbox.released)

    def keep(self, count: int) -> None:
        del self.tokens[count:]
        self.chunks = [chunk for chunk in self.chunks if chunk.index < count]


@dataclass(eq=False)
class Asked:
    """A row in the batch; a fork has a ``parent`` that had ``before`` deeds behind it then."""

    prompt: list[int]
    options: dict[str, Any]
    handle: Handle
    seen: Seen = field(default_factory=Seen)
    deeds: list[Deed] = field(default_factory=list)
    parent: Asked | None = None
    before: int = 0
    done: bool = False
    cancelled: bool = False


def play(loop: Loop, handle: Handle, seen: Seen, deeds: list[Deed], *, to_the_end: bool) -> None:
    """Run a row alone, doing to it what was done in the batch, at the same moments."""
    left, begun = list(deeds), False
    for _ in range(2000):
        while left and left[0].mark == mark(handle.request):
            to = left.pop(0).to
            if to is None:
                handle.request.fork_seeds(1)
            else:
                rewind(handle.request, to)
                seen.rewound(handle.request)
        ended = seen.reason is not None or seen.error
        if ended or not (left or to_the_end):
            assert not left, "the row never came to where something was done to it"
            return
        if not begun:
            begun = True
            try:
                handle.start()
                seen.take(handle.take())
            except MlxgenError as error:
                seen.error = str(error)
            continue
        events: list[Event] = []
        loop.step(events)
        for outcome in events:
            seen.take(outcome.chunks)
            seen.error = str(outcome.error or "")
    raise AssertionError("it never ended")


def alone(lm: LanguageModel, request: Asked) -> Seen:
    """What a request comes to in a loop of its own."""
    line = [request]
    while line[0].parent is not None:
        line.insert(0, line[0].parent)
    row = lm.runtime.prepare(request.prompt, Options.of({**request.options, "draft": "off"}))
    runner = Runner(lm.model, lm.runtime.make_cache)
    handle = Handle(row, KV(runner))
    seen = Seen()
    for each, heir in zip(line, [*line[1:], None], strict=True):
        loop = Loop(runner, lm.runtime.sampler)
        loop.join(handle)
        deeds = each.deeds if heir is None else each.deeds[: heir.before + 1]
        play(loop, handle, seen, deeds, to_the_end=heir is None)
        if heir is not None:
            handle, seen = handle.fork(heir.handle.request.seed), seen.copy()
    return seen


def said(seen: Seen) -> tuple[Any, ...]:
    details = [(c.token, c.index, c.forced, c.attempts, c.stop) for c in seen.chunks]
    return seen.text, seen.tokens, seen.reason, seen.error, details


class Crowd:
    """Requests in a scheduler, with all that callers may do to them."""

    def __init__(self, lm: LanguageModel, limits: Limits) -> None:
        lm.prefix_cache.clear()
        self.lm = lm
        self.scheduler = Scheduler(lm.runtime, limits)
        self.requests: list[Asked] = []

    @property
    def live(self) -> list[Asked]:
        return [request for request in self.requests if not request.done]

    def submit(self, prompt: list[int], options: dict[str, Any]) -> None:
        options = {"draft": "off", **options}
        row = self.lm.runtime.prepare(prompt, Options.of(options))
        self.requests.append(Asked(prompt, options, self.scheduler.submit(row)))

    def cancel(self, request: Asked) -> None:
        self.scheduler.cancel(request.handle)
        self.scheduler.cancel(request.handle)
        request.done = request.cancelled = True

    def rewind(self, request: Asked, share: float) -> None:
        row = request.handle.request
        to = row.first + int((row.position - row.first) * share)
        request.deeds.append(Deed(mark(row), to))
        rewind(row, to)
        request.seen.rewound(row)

    def fork(self, request: Asked) -> None:
        deed = Deed(mark(request.handle.request), None)
        try:
            (twin,) = self.scheduler.fork(request.handle)
        except (QueueFullError, CapacityError, StateError):
            return  # the last one: what filters force has ended it before it began
        request.deeds.append(deed)
        before, seen = len(request.deeds) - 1, request.seen.copy()
        fork = Asked(request.prompt, request.options, twin, seen, parent=request, before=before)
        self.requests.append(fork)
        self.scheduler.check_integrity()

    def step(self) -> None:
        by_handle = {request.handle: request for request in self.live}
        for event in self.scheduler.step():
            request = by_handle[event.handle]  # raises for one that was cancelled
            request.seen.take(event.chunks)
            request.seen.error = str(event.error or "")
            request.done = event.error is not None or request.seen.reason is not None
        self.scheduler.check_integrity()

    def finish(self) -> None:
        for _ in range(3000):
            if not self.scheduler.busy:
                break
            self.step()
        assert not self.live and not self.scheduler.busy
        assert self.scheduler.stats().kv_bytes == 0

    def compare(self) -> None:
        for request in self.requests:
            if not request.cancelled:
                assert said(request.seen) == said(alone(self.lm, request))


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=tries(8), suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_row_says_in_any_company_what_it_says_alone(kind: str, data: st.DataObject) -> None:
    lm = model_with(kind)
    room = data.draw(st.sampled_from([None, 3, 9]), "sequences that the bytes are for")
    unit = lm.runtime.footprint.alone(400)
    limits = Limits(
        max_batch=data.draw(st.sampled_from([1, 2, 5]), "max_batch"),
        max_bytes=unit * room if room else None,
        keep_prefixes=data.draw(st.booleans(), "keep_prefixes"),
    )
    crowd = Crowd(lm, limits)
    for _ in range(data.draw(st.integers(5, 25), "moments")):
        match data.draw(st.sampled_from(["step", "submit", "step", "rewind", "fork", "cancel"])):
            case "submit" if len(crowd.requests) < 6:
                crowd.submit(data.draw(PROMPTS), data.draw(options()))
            case ("rewind" | "fork" | "cancel") as deed if crowd.live:
                request = crowd.live[data.draw(st.integers(0, len(crowd.live) - 1))]
                if deed == "rewind":
                    crowd.rewind(request, data.draw(st.floats(0, 1)))
                elif deed == "cancel":
                    crowd.cancel(request)
                elif len(crowd.requests) < 6:
                    crowd.fork(request)
            case _:
                for _ in range(data.draw(st.sampled_from([1, 3, 9]))):
                    crowd.step()
    crowd.finish()
    crowd.compare()


# ---- what such runs found, by name


def test_an_ended_row_that_is_rewound_to_its_end_has_ended() -> None:
    forced = {"max_tokens": 5, "temperature": 0.0, "filters": [Regex("ABCDEFGH")]}
    crowd = Crowd(model_with("plain"), Limits(max_batch=1, keep_prefixes=False))
    crowd.submit([5] * 300, forced)
    crowd.fork(crowd.requests[0])  # the copy ends before it begins
    crowd.rewind(crowd.requests[0], 1.0)
    crowd.finish()
    crowd.compare()
    assert crowd.requests[0].seen.text == "ABCDE"


def crowd_of(kind: str, lengths: list[int], *, steps: int, max_tokens: int = 60) -> Crowd:
    """One row alone for a while, then others that join it."""
    crowd = Crowd(model_with(kind), Limits(keep_prefixes=False))
    for i, length in enumerate(lengths):
        options = {"max_tokens": max_tokens, "temperature": 0.0, "seed": i, "ignore_eos": True}
        crowd.submit([i + 1] * length, options)
        for _ in range(steps if i == 0 else 3):
            crowd.step()
    return crowd


BATCHED = [kind for kind in KINDS if kind not in ("concatenating", "chunked")]


@pytest.mark.parametrize("kind, share", list(product(BATCHED, [0.0, 0.3, 0.9, 0.6])))
def test_a_row_goes_back_behind_the_place_where_it_joined_the_others(
    kind: str, share: float
) -> None:
    crowd = crowd_of(kind, [3, 5], steps=20)
    crowd.rewind(crowd.requests[0], share)
    crowd.finish()
    crowd.compare()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["rotating", "sliding window"])
def test_a_row_goes_back_further_than_a_window_reaches(kind: str) -> None:
    crowd = crowd_of(kind, [3, 5], steps=4, max_tokens=320)
    for _ in range(300):
        crowd.step()
    crowd.rewind(crowd.requests[0], 0.05)
    crowd.rewind(crowd.requests[1], 0.95)
    for _ in range(5):
        crowd.step()
    crowd.rewind(crowd.requests[1], 0.5)
    crowd.finish()
    crowd.compare()


@pytest.mark.parametrize("kind", KINDS)
def test_forced_runs_may_share_the_pass_of_the_others(kind: str) -> None:
    crowd = crowd_of(kind, [3, 9], steps=3, max_tokens=20)
    for pattern in ("A[0-9]BC[0-9]DEF[0-9]GHIJ", "[0-9]AB[0-9]+XYZ"):
        crowd.submit([1, 2], {"filters": [Regex(pattern)], "seed": 1, "max_tokens": 20})
    crowd.finish()
    crowd.compare()


@pytest.mark.parametrize("ask", [max, min], ids=["the longest", "the shortest"])
def test_rows_of_very_different_lengths_run_side_by_side(ask: Callable[..., int]) -> None:
    lengths = [900, 2, 3, 4, 2, 3]
    crowd = crowd_of("plain", lengths, steps=3)
    crowd.cancel(crowd.requests[lengths.index(ask(lengths))])
    crowd.finish()
    crowd.compare()


def test_a_fork_draws_with_its_own_seed_even_if_its_parent_leaves_at_once() -> None:
    lm, prompt = model_with("demo"), [5, 6, 7]
    options = {"temperature": 1.5, "max_tokens": 12, "ignore_eos": True}
    scheduler = Scheduler(lm.runtime)
    handle = scheduler.submit(lm.runtime.prepare(prompt, Options.of({**options, "seed": 1})))
    while handle.request.position < 4:
        scheduler.step()
    (twin,) = scheduler.fork(handle)
    scheduler.cancel(handle)  # its next draw has been submitted already
    given, seed = twin.request.tokens, twin.request.seed
    while scheduler.busy:
        scheduler.step()
    alone = lm.generate(prompt, prefix=given, seed=seed, **options)  # type: ignore[arg-type]
    assert twin.request.tokens == list(alone.tokens)
