"""Requests that come, go, go back, branch and are steered at any moment: whatever happens to the
others, a row says in any company what it says alone."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from hashlib import blake2b
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mlx_lm.tokenizer_utils import BPEStreamingDetokenizer, TokenizerWrapper

import mlxgen
from mlxgen import LanguageModel, Limits, MlxgenError, Regex
from mlxgen.engine import change_options, keep_only, put
from mlxgen.engine.chunk import Chunk, FinishReason
from mlxgen.engine.kv.kv import KV
from mlxgen.engine.kv.runner import Runner
from mlxgen.engine.options import Options
from mlxgen.engine.prefix.block import Block
from mlxgen.engine.prefix.block_file import Layout
from mlxgen.engine.prefix.disk import Disk
from mlxgen.engine.prefix.store import BlockStore
from mlxgen.engine.request.accept import end, rewind
from mlxgen.engine.request.request import Request
from mlxgen.engine.scheduling.scheduler import Scheduler
from mlxgen.engine.step.drawn import Event
from mlxgen.engine.step.handle import Handle
from mlxgen.engine.step.step import Loop
from mlxgen.errors import CapacityError, ModelError, QueueFullError, StateError
from tests.engine.kit import options_for
from tests.fakes import alphabet_tokenizer
from tests.fakes.architectures import VOCAB, cache_kinds
from tests.fakes.prefix_integrity import check_integrity
from tests.fakes.speaking import Speaker

from ...effort import tries

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

    return Speaker([], say, recurrent=recurrent)


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


FILTERS, HOOKS = (list(options_for(law).values()) for law in ("company", "company of hooks"))
SMALL_LETTERS = list(options_for("company of letters").values())
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


# ---- the laws -----------------------------------------------------------------------------------


DEEDS = ["step", "submit", "step", "rewind", "fork", "cancel", "order", "submit"]


class Flaky(Disk):
    """A disk that fails now and then."""

    reads = 0

    def read(self, block: Block) -> Block:
        self.reads += 1
        if self.reads % 7 == 0:
            raise OSError("the disk is gone")
        return super().read(block)


def happen(company: Company, kind: str, data: st.DataObject, most: int) -> None:
    """One of all that callers do. What is drawn does not depend on how far anybody has come, which
    the time of a pass decides as well."""
    deed = data.draw(st.sampled_from(DEEDS))
    has_room, live = len(company.requests) < most, company.live
    if deed == "submit":
        prompt, given = data.draw(PROMPTS), data.draw(options(kind))
        if has_room:
            company.submit(prompt, **given)
        return
    if deed == "step":
        for _ in range(data.draw(st.sampled_from([1, 3, 9]))):
            company.step()
        return
    which, share, order = (
        data.draw(st.integers(0, 59)),
        data.draw(st.floats(0, 1)),
        data.draw(ORDERS),
    )
    if not live:
        company.step()
        return
    request = live[which % len(live)]
    if deed == "rewind":
        company.rewind(request, share)
    elif deed == "cancel":
        company.cancel(request)
    elif deed == "order" and not request.handle.has_ended:
        company.order(request, order)
    elif deed == "fork" and has_room:
        company.fork(request)


def limits_of(lm: LanguageModel, data: st.DataObject) -> Limits:
    room = data.draw(st.sampled_from([None, 5.01, 6.5, 9, 14]), "short sequences that have room")
    return Limits(
        max_batch=data.draw(st.sampled_from([1, 2, 5]), "max_batch"),
        max_bytes=None if room is None else int(lm.runtime.footprint.alone(0) * room),
        keep_prefixes=data.draw(st.booleans(), "keep_prefixes"),
        prefill_chunk=data.draw(st.sampled_from([None, 4, 16, 64]), "prefill_chunk"),
    )


@pytest.mark.parametrize("kind", REAL)
@settings(max_examples=tries(16), suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_row_says_in_any_company_what_it_says_alone(kind: str, data: st.DataObject) -> None:
    lm = model_with(kind)
    company = Company(lm, limits_of(lm, data))
    for _ in range(data.draw(st.integers(5, 25), "moments")):
        happen(company, kind, data, 6)
    company.finish()
    company.compare()


@pytest.mark.parametrize("kind", SCRIPTED)
@settings(max_examples=tries(100), suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_so_it_does_in_a_crowd_with_a_disk_that_fails_now_and_then(
    kind: str, data: st.DataObject
) -> None:
    lm = model_with(kind)
    make = lm.runtime.make_cache
    with TemporaryDirectory() as folder:
        disk = Flaky(Path(folder), 300_000, Layout(make)) if data.draw(st.booleans()) else None
        cache = BlockStore(make, 1 << 20, folder=disk)
        lm.runtime.prefix_cache = cache
        company = Company(lm, limits_of(lm, data))
        for moment in range(data.draw(st.integers(10, 60), "moments")):
            if disk is not None and moment % 12 == 0:  # what goes to the disk comes back from there
                cache.shrink(0)
            happen(company, kind, data, 16)
        company.finish()
        company.compare()
        check_integrity(cache)
        assert cache.close(20)


# ---- what such runs found, by name


@pytest.mark.parametrize("kind", ["demo", "hybrid"])
def test_a_fork_draws_with_its_own_seed_even_if_its_parent_leaves_at_once(kind: str) -> None:
    company = Company(model_with(kind))
    given: dict[str, Any] = {"temperature": 1.5, "max_tokens": 12, "ignore_eos": True, "seed": 1}
    first = company.submit([5, 6, 7], **given)
    assert first is not None
    while first.handle.request.position < 4:
        company.step()
    company.fork(first)
    company.cancel(first)  # its next draw has been submitted already
    company.finish()
    company.compare()


def test_what_has_ended_takes_no_orders() -> None:
    company = Company(model_with("plain"))
    request = company.submit([1, 2, 3], max_tokens=4)
    assert request is not None
    company.finish()
    company.order(request, lambda row: end(row, "cancelled"))
    assert not request.deeds and request.seen == alone(company.lm, request)
