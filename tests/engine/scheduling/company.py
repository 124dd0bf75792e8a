"""Requests that come, go, go back, branch and are steered at any moment, beside one another and
each alone."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from hashlib import blake2b
from typing import Any, NamedTuple

from hypothesis import strategies as st
from mlx_lm.models.cache import ArraysCache
from mlx_lm.tokenizer_utils import BPEStreamingDetokenizer, TokenizerWrapper

import mlxgen
from mlxgen import Choice, JsonSchema, LanguageModel, Limits, MlxgenError, PostSamplingResult, Regex
from mlxgen.engine import change_options, keep_only, put
from mlxgen.engine.chunk import Chunk, FinishReason
from mlxgen.engine.kv.kv import KV
from mlxgen.engine.kv.runner import Runner
from mlxgen.engine.options import Options
from mlxgen.engine.request.accept import rewind
from mlxgen.engine.request.request import Request
from mlxgen.engine.scheduling.scheduler import Scheduler
from mlxgen.engine.step.drawn import Event
from mlxgen.engine.step.handle import Handle
from mlxgen.engine.step.step import Loop
from mlxgen.errors import CapacityError, ModelError, QueueFullError, StateError
from tests.fakes import alphabet_tokenizer
from tests.fakes.architectures import VOCAB, cache_kinds
from tests.fakes.speaking import Speaker

SCRIPTED = ["scripted", "scripted recurrent"]
REAL = [*cache_kinds(), "demo"]
END = ord("@")  # a token that the small models have


def mumbling(*, recurrent: bool = False) -> Speaker:
    """Says letters that depend on all that was said lately, and ends now and then."""

    def say(self: Speaker, generated: list[int]) -> dict[int, float]:
        lately = bytes(token % 256 for token in (*generated[-6:], len(generated) % 256))
        dice = random.Random(blake2b(lately).digest())
        ranked = [*dice.sample(range(97, 105), 5), 120, 32]
        if len(generated) > 4 and dice.random() < 0.03:
            ranked.insert(0, self.end)
        return {token: -0.7 * rank for rank, token in enumerate(ranked)}

    caches = {"make_cache": lambda: [ArraysCache(1)]} if recurrent else {}
    return Speaker([], say, **caches)


@cache
def model_with(kind: str) -> LanguageModel:
    if kind == "demo":
        return mlxgen.load()
    if kind in SCRIPTED:
        return mumbling(recurrent=kind != "scripted").lm
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


INTEGERS = JsonSchema({"type": "array", "items": {"type": "integer"}, "minItems": 1})
FILTERS: list[dict[str, Any]] = [
    {"filters": [Regex(r"[0-9A-F ]{3,30}")]},
    {"filters": [Regex(r"ABCDEFGH[0-9]{2}IJKLMNOPQ[0-9]+;THE END( AND AGAIN AND AGAIN)?")]},
    {"filters": [INTEGERS]},
    {"filters": [Choice(["A", "AB", "NO WAY"])]},
    {"filters": [Regex("[A-Z]+"), Regex("[A-M]*[0-9]?")]},
    {"filters": [JsonSchema({"type": "array", "items": {"type": "integer"}})], "close_json": True},
]
SMALL_LETTERS: list[dict[str, Any]] = [
    {"filters": [Regex(pattern)]}
    for pattern in ("[a-d]{30}", "(abc|defg|hx{20})*", "[ab]x{130}[ab]*", "")
]
HOOKS: list[dict[str, Any]] = [
    {"hooks": resampling},
    {"hooks": stepping_back, "hold_tokens": 4},
    {"hooks": going_far_back, "hold_tokens": 16},
    {"hooks": going_far_back, "allow_retract": True},
    {"hooks": looking},
    {"hooks": putting_others},
]
REQUIRED = {
    "max_tokens": st.sampled_from([5, 1, 12, 24]),
    "seed": st.integers(0, 1 << 40),
    "temperature": st.sampled_from([0.0, 0.7, 1.5]),
    "draft": st.sampled_from(["off", "off", "ngram"]),
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
    "stop": st.sampled_from(["A", "BC", "1", "e", "ab"]),
    "banned": st.sampled_from([["B"], ["5", "CD"], [re.compile("[A-F]")], ["e", " t"], ["cd"]]),
    "min_tokens": st.just(1),
    "ignore_eos": st.just(True),
    "heal": st.just(True),
    "allow_retract": st.just(True),
}


@st.composite
def options(draw: st.DrawFn, kind: str) -> dict[str, Any]:
    filters = [*FILTERS, *SMALL_LETTERS] if kind in SCRIPTED else FILTERS
    plain: dict[str, Any] = draw(st.fixed_dictionaries(REQUIRED, optional=OPTIONAL))
    for steering in (filters, HOOKS):
        if draw(st.integers(0, 2)) == 0:
            plain |= draw(st.sampled_from(steering))
    if kind in SCRIPTED:  # they say more, and need more bytes for it
        plain["max_tokens"] = draw(st.sampled_from([1, 5, 20, 60, 240]))
    return plain


COMMON = [(7 * i) % VOCAB for i in range(70)]
PROMPTS = st.one_of(
    st.integers(1, 70).map(lambda length: COMMON[:length]),
    st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=20),
    st.just([5] * 300),
    st.just([5] * 200 + [6] * 5),
)
CHANGES: list[dict[str, Any]] = [
    {"temperature": 1.5},
    {"stop": ["abc"]},
    {"filters": [Regex("[a-hA-H]{9,}")]},
]
ORDERS: st.SearchStrategy[Callable[[Request], object]] = st.one_of(
    st.integers(0, 30).map(lambda n: partial(keep_only, tokens=n, to=None)),
    st.integers(0, 30).map(lambda n: partial(keep_only, tokens=None, to=n)),
    st.lists(st.integers(65, 72), min_size=1, max_size=40).map(
        lambda tokens: partial(put, tokens=tokens)
    ),
    st.sampled_from(CHANGES).map(lambda changed: partial(change_options, given=changed)),
)


# ---- what was done, and what a caller has seen


class Deed(NamedTuple):
    """What a caller did to a row when its ``mark`` was this: a "fork", a "rewind" or an "order"."""

    mark: tuple[int, ...]
    kind: str
    act: Callable[[Request], object]


def mark(row: Request) -> tuple[int, ...]:
    """How far a row has come; no two draws leave the same."""
    return row.position, row.tally.rewound_tokens, row.tally.redraws, row.tally.forced_tokens


@dataclass
class Seen:
    text: str = ""
    tokens: list[int] = field(default_factory=list)
    chunks: list[Chunk] = field(default_factory=list)
    reason: FinishReason | None = None
    error: Exception | None = None

    def copy(self) -> Seen:
        return Seen(self.text, list(self.tokens), list(self.chunks))

    def take(self, chunks: Sequence[Chunk]) -> None:
        for chunk in chunks:
            assert self.reason is None, "a chunk after the last one"
            assert chunk.retract <= len(self.text)
            self.text = self.text[: len(self.text) - chunk.retract] + chunk.text
            assert chunk.index <= len(self.tokens), "a token is missing"
            self.keep(chunk.index)
            if chunk.token is not None:
                self.tokens.append(chunk.token)
            self.chunks.append(chunk)
            self.reason = chunk.finish_reason

    def did(self, deed: Deed, row: Request) -> None:
        """Take in what a deed changed that no chunk tells."""
        if deed.kind == "rewind":
            self.text = row.outbox.text
            if row.finish_reason is None:  # else it went to where it ended, which changes nothing
                self.reason = None
            self.keep(row.outbox.released)

    def keep(self, count: int) -> None:
        del self.tokens[count:]
        self.chunks = [chunk for chunk in self.chunks if chunk.index < count]

    @property
    def said(self) -> tuple[Any, ...]:
        details = [(c.token, c.index, c.forced, c.attempts, c.stop) for c in self.chunks]
        return self.text, self.tokens, self.reason, repr(self.error), details


@dataclass(eq=False)
class Asked:
    """A row in the company; a fork has a ``parent`` that had ``before`` deeds behind it then."""

    prompt: list[int]
    options: dict[str, Any]
    handle: Handle
    seen: Seen = field(default_factory=Seen)
    deeds: list[Deed] = field(default_factory=list)
    parent: Asked | None = None
    before: int = 0
    done: bool = False
    cancelled: bool = False


def alone(lm: LanguageModel, asked: Asked) -> Seen:
    """What a request comes to in a loop of its own, if the same is done to it."""
    line = [asked]
    while line[0].parent is not None:
        line.insert(0, line[0].parent)
    row = lm.runtime.prepare(asked.prompt, Options.of({**asked.options, "draft": "off"}))
    runner = Runner(lm.model, lm.runtime.make_cache)
    handle = Handle(row, KV(runner))
    seen = Seen()
    for each, heir in zip(line, [*line[1:], None], strict=True):
        loop = Loop(runner, lm.runtime.sampler)
        loop.join(handle)
        deeds = each.deeds if heir is None else each.deeds[: heir.before + 1]
        _play(loop, handle, seen, deeds, to_the_end=heir is None)
        if heir is not None:
            handle, seen = handle.fork(heir.handle.request.seed), seen.copy()
    return seen


def _play(loop: Loop, handle: Handle, seen: Seen, deeds: list[Deed], *, to_the_end: bool) -> None:
    left, begun = list(deeds), False
    for _ in range(2000):
        while left and left[0].mark == mark(handle.request):
            deed = left.pop(0)
            deed.act(handle.request)
            seen.did(deed, handle.request)
            if deed.kind == "order":
                handle.forget()
                seen.take(handle.take())
        if seen.reason is not None or seen.error or not (left or to_the_end):
            assert not left, "the row never came to where something was done to it"
            return
        events: list[Event] = []
        if begun:
            loop.step(events)
        else:
            begun = True
            try:
                handle.start()
            except MlxgenError as error:
                seen.error = error
            seen.take(handle.take())
        for event in events:
            seen.take(event.chunks)
            seen.error = event.error
    raise AssertionError("it never ended")


class Company:
    """Requests in a scheduler, with all that callers may do to them."""

    def __init__(self, lm: LanguageModel, limits: Limits | None = None) -> None:
        lm.prefix_cache.clear()
        self.lm = lm
        self.scheduler = Scheduler(lm.runtime, limits)
        self.requests: list[Asked] = []

    @property
    def live(self) -> list[Asked]:
        return [request for request in self.requests if not request.done]

    def submit(self, prompt: list[int], **options: Any) -> Asked | None:
        options = {"draft": "off", **options}
        row = self.lm.runtime.prepare(prompt, Options.of(options))
        try:
            asked = Asked(prompt, options, self.scheduler.submit(row))
        except (QueueFullError, CapacityError):
            return None
        self.requests.append(asked)
        return asked

    def cancel(self, request: Asked) -> None:
        self.scheduler.cancel(request.handle)
        self.scheduler.cancel(request.handle)
        request.done = request.cancelled = True

    def rewind(self, request: Asked, share: float) -> None:
        row = request.handle.request
        to = row.first + int((row.position - row.first) * share)
        deed = Deed(mark(row), "rewind", lambda row: rewind(row, to))
        request.deeds.append(deed)
        deed.act(row)
        request.seen.did(deed, row)

    def fork(self, request: Asked) -> None:
        deed = Deed(mark(request.handle.request), "fork", lambda row: row.fork_seeds(1))
        try:
            (twin,) = self.scheduler.fork(request.handle)
        except (QueueFullError, CapacityError, StateError):
            return  # the last one: what filters force has ended it before it began
        request.deeds.append(deed)
        before, seen = len(request.deeds) - 1, request.seen.copy()
        fork = Asked(request.prompt, request.options, twin, seen, parent=request, before=before)
        self.requests.append(fork)
        self.scheduler.check_integrity()

    def order(self, request: Asked, act: Callable[[Request], object]) -> None:
        row = request.handle.request
        if row.position and not request.seen.chunks:  # a fork began it; alone, this would be out
            return
        deed, before = Deed(mark(row), "order", act), list(row.history)
        try:
            events = self.scheduler.order(request.handle, act)
        except MlxgenError:
            assert list(row.history) == before
            return
        request.deeds.append(deed)
        self._take(events)

    def step(self) -> None:
        self._take(self.scheduler.step())
        self.scheduler.check_integrity()

    def _take(self, events: list[Event]) -> None:
        by_handle = {request.handle: request for request in self.live}
        for event in events:
            request = by_handle[event.handle]  # raises for one that was cancelled
            request.seen.take(event.chunks)
            request.seen.error = event.error
            request.done = event.error is not None or request.seen.reason is not None

    def finish(self) -> None:
        for _ in range(9000):
            if not self.scheduler.busy:
                break
            self.step()
        assert not self.live and not self.scheduler.busy
        assert self.scheduler.stats().kv_bytes == 0

    def compare(self) -> None:
        """Each has said what it says alone, unless there were too few bytes for it."""
        for request in self.requests:
            seen = request.seen
            if request.cancelled or isinstance(seen.error, CapacityError):
                continue
            whole = alone(self.lm, request)
            if isinstance(seen.error, ModelError) and not isinstance(whole.error, ModelError):
                # It failed meanwhile; the end of its text may be what would have been taken back.
                assert whole.text.startswith(seen.text) or request.options.get("allow_retract")
            else:
                assert seen.said == whole.said
