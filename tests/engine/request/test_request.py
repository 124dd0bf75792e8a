"""The laws of a whole request: back, anew, forks, all or nothing, and delivery in any pieces."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence, Set
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mlxgen
from mlxgen import Regex
from mlxgen.engine.branches import Steering
from mlxgen.engine.chunk import Chunk, Usage, fold
from mlxgen.engine.options import Options
from mlxgen.engine.request.accept import accept, end, fast_forward, rewind, take
from mlxgen.engine.request.leads import forced_run, leaves_any, next_draw, next_mask
from mlxgen.engine.request.prompt import Prompt
from mlxgen.engine.request.request import Request
from mlxgen.errors import DeadEndError, FilterError
from mlxgen.filters import Filter, tokens_of, words_of
from mlxgen.sampling import DrawRow, ForcedView
from mlxgen.text import ThinkingMarks
from mlxgen.tokens import Token, Vocabulary
from tests.fakes import alphabet_tokenizer

from ...effort import tries
from ..kit import options_for

VOCABULARY = Vocabulary.of(alphabet_tokenizer(["ab", "abc", "bc", " a"]))
LETTERS = [*b"abcd 1", *range(256, 260)]
END = next(iter(VOCABULARY.eos))

KINDS = options_for("request")
MARKS = ThinkingMarks("opening", "a", {"reasoning": {"bc": "content"}})
kinds = st.sampled_from(sorted(KINDS))
scripts = st.lists(st.sampled_from([*LETTERS, END]), min_size=1, max_size=30)


def request_of(kind: str, *, budget: int = 24, queued: bool = True) -> Request:
    options = Options.of({"max_tokens": budget, "seed": 3, **KINDS[kind]})
    thinking = MARKS if "thinking" in kind else None
    prompt = Prompt(tuple(b"1 a"), opens_text=False, thinking=thinking)
    return Request(
        prompt, options, VOCABULARY, VOCABULARY.size, budget=budget, seed=3, queued=queued
    )


def allows(draw: DrawRow, token: Token) -> bool:
    return draw.words is None or bool(draw.words[token // 32] >> (token % 32) & 1)


def play(request: Request, script: Sequence[Token], due: Sequence[bool], steps: int = 60) -> Any:
    """Draw what a script says for each position and attempt; chunks are taken where it is due."""
    chunks: list[Chunk] = []
    for step in range(steps):
        try:
            draw = next_draw(request)
        except DeadEndError:
            return "dead end", chunks
        start = draw.position + 5 * draw.attempt
        wanted = [script[(start + i) % len(script)] for i in range(len(script))]
        token = next((t for t in (*wanted, *LETTERS, END) if allows(draw, t)), None)
        if token is None:
            return "nothing to say", chunks
        try:
            if accept(request, token, ForcedView(token)):
                fast_forward(request)
        except DeadEndError:
            return "dead end", chunks
        request.check_integrity()
        if due[step % len(due)] or request.finish_reason is not None:
            chunks += take(request)
        if request.finish_reason is not None:
            break
    return request.finish_reason, chunks


def put(request: Request, tokens: Sequence[Token]) -> None:
    """Append as many tokens as the parts take, as a look along a draft does."""
    for token in tokens:
        try:
            if request.advance(token) is not None:
                request.rewind(len(request.history) - 1)
                return
        except FilterError:
            return


def look(request: Request) -> dict[str, Any]:
    """What can be seen of a request."""
    constraint, lookback, text = request.constraint, request.lookback, request.transcript
    changes = () if lookback is None else lookback.changes()
    mask = constraint.mask() if constraint is not None else None
    return {
        "history": list(request.history),
        "base": request.base,
        "first": request.first,
        "mask": None if mask is None else mask.tolist(),
        "can end": constraint is not None and constraint.can_end(),
        "text": (text.so_far(), text.safe(), text.decoder.flush()),
        "settled": len(text) and text.settled(0, 0),
        "remaining": request.healer.remaining if request.healer is not None else b"",
        "changes": [[column.tolist() for column in each] for each in changes],
        "thoughts": _thoughts(request),
        "way": request.closing is not None and (request.closing.way, request.closing.forcing),
        "delivered": (request.outbox.text, request.outbox.released),
        "retries": dataclasses.asdict(request.retries),
        "tally": dict(vars(request.tally)),
        "end": (request.finish_reason, request.match),
    }


def _thoughts(request: Request) -> Any:
    thoughts = request.transcript.thoughts
    if thoughts is None:
        return None
    return thoughts.is_open, thoughts.is_over, thoughts.began, forced_run(request)


@settings(max_examples=tries(640))
@given(kind=kinds, script=scripts, steps=st.integers(0, 12), stray=scripts)
def test_going_on_and_back_equals_never_having_gone_on(
    kind: str, script: list[Token], steps: int, stray: list[Token]
) -> None:
    request = request_of(kind)
    play(request, script, [True], steps)
    if request.finish_reason is not None:
        return
    before = look(request)
    length = len(request.history)
    put(request, stray)
    request.rewind(length)
    request.check_integrity()
    assert look(request) == before


@settings(max_examples=tries(640))
@given(kind=kinds, script=scripts, kept=st.integers(0, 30))
def test_going_back_equals_a_fresh_request_that_was_fed_what_is_kept(
    kind: str, script: list[Token], kept: int
) -> None:
    request, fresh = request_of(kind), request_of(kind)
    put(request, script)
    request.rewind(request.base + kept)
    put(fresh, request.tokens)
    request.check_integrity()
    assert look(request) == look(fresh)


@settings(max_examples=tries(640))
@given(kind=kinds, script=scripts, steps=st.integers(0, 12), other=scripts, back=st.booleans())
def test_neither_of_two_forks_sees_what_the_other_does(
    kind: str, script: list[Token], steps: int, other: list[Token], back: bool
) -> None:
    request = request_of(kind)
    play(request, script, [True, False], steps)
    if request.finish_reason is not None:
        return
    twin, third = request.fork(request.seed), request.fork(request.seed)
    before = look(twin)
    play(request, other, [True])
    if back:
        rewind(request, request.first)
    assert look(twin) == before
    assert play(twin, other, [True]) == play(third, other, [True])


def test_a_rewind_that_a_filter_cannot_do_changes_nothing() -> None:
    class Stubborn(Filter):
        def fill(self, row: Any) -> bool:
            return False

        def advance(self, token: Token) -> None:
            if refuses:
                raise FilterError("not again")

        def can_end(self) -> bool:
            return True

        def reset(self) -> None:
            pass

    refuses = False
    options = Options.of({"filters": [Stubborn()], "stop": "x", "presence_penalty": 0.5})
    prompt = Prompt((1,), opens_text=False)
    request = Request(prompt, options, VOCABULARY, VOCABULARY.size, budget=9, seed=3)
    put(request, b"abcab")
    before, refuses = look(request), True
    with pytest.raises(FilterError):
        request.rewind(4)
    assert look(request) == before


@settings(max_examples=tries(640))
@given(
    kind=kinds,
    script=scripts,
    due=st.lists(st.booleans(), min_size=1, max_size=6),
    budget=st.integers(1, 24),
)
def test_what_is_delivered_is_the_same_in_any_pieces(
    kind: str, script: list[Token], due: list[bool], budget: int
) -> None:
    asked = [request_of(kind, budget=budget) for _ in range(3)]
    found = [
        play(*each, steps=300)
        for each in zip(asked, [script] * 3, [[False], [True], due], strict=True)
    ]
    whole, *others = (fold(chunks, Usage()) for _, chunks in found)
    reason = found[0][0]
    for (why, chunks), other in zip(found[1:], others, strict=True):
        assert why == reason
        if why in ("dead end", "nothing to say", None):  # without an end, some of it waits
            continue
        assert (other.text, other.tokens, other.stop) == (whole.text, whole.tokens, whole.stop)
        if not any(chunk.retract for chunk in chunks):
            assert [chunk.index for chunk in chunks if chunk.token is not None] == list(
                range(len(other.tokens))
            )
    if reason not in ("dead end", "nothing to say", None):
        assert not any(re.search(ban, whole.text) for ban in KINDS[kind].get("banned", ()))
        assert np.all([each.outbox.text == whole.text for each in asked])


@settings(max_examples=tries(640))
@given(kind=kinds, script=scripts, other=scripts, due=st.lists(st.booleans(), min_size=1))
def test_what_a_consumer_has_is_what_was_delivered_after_any_rewind(
    kind: str, script: list[Token], other: list[Token], due: list[bool]
) -> None:
    request = request_of(kind)
    _, chunks = play(request, script, due, 15)
    seen = request.outbox.released
    rewind(request, seen // 2, seen)
    text = request.outbox.text
    tokens = request.tokens[: request.outbox.released]
    reason, chunks = play(request, other, due, 15)
    if reason is None:  # what is owed comes with the next chunk
        end(request, "cancelled")
        chunks += take(request)
    for chunk in chunks:
        text = text[: len(text) - chunk.retract] + chunk.text
        if chunk.token is not None:
            assert chunk.index == len(tokens) or chunk.retract or KINDS[kind].get("allow_retract")
            tokens = [*tokens[: chunk.index], chunk.token]
        else:
            tokens = tokens[: chunk.index]
    assert text == request.outbox.text
    assert tokens == request.tokens[: len(tokens)]


@settings(max_examples=tries(640))
@given(kind=kinds, script=scripts, seen=st.integers(0, 12), ahead=st.integers(1, 12))
def test_what_ran_ahead_of_a_consumer_who_goes_back_leaves_no_trace(
    kind: str, script: list[Token], seen: int, ahead: int
) -> None:
    request, waits = request_of(kind), request_of(kind)
    play(request, script, [True] * seen + [False] * ahead, seen + ahead)
    play(waits, script, [True], seen)
    had = waits.outbox.released
    if request.finish_reason is not None or request.outbox.released < had:
        return
    if min(request.position, waits.position) <= had // 2:  # there is nothing to go back from
        return
    for each in (request, waits):
        rewind(each, had // 2, had)
    one, other = look(request), look(waits)
    for told in (one, other):  # what counts all draws, and what is found when it is looked for
        del told["tally"], told["way"]
        attempts = told["retries"]["attempts"]
        told["retries"]["attempts"] = {place: times for place, times in attempts.items() if times}
    assert one == other


def test_nothing_but_a_request_takes_back_its_parts() -> None:
    fields = set(vars(request_of("plain")))
    call = re.compile(rf"\b({'|'.join(fields)})\.(rewind|cut)\(")
    engine = Path(mlxgen.__file__).parent / "engine"
    calls = {path for path in engine.rglob("*.py") if call.search(path.read_text())}
    assert calls == {engine / "request" / "request.py"}


# ---- the mask of the next token, compared with asking everybody about every token --------------

SPELLED = [*b"abc", 256, 257, 258, END]
SIZE = VOCABULARY.size + 5  # logits are often wider than the vocabulary

some = st.sets(st.sampled_from(SPELLED))
few = st.sets(st.sampled_from(SPELLED), max_size=2)
GIVEN = [[], [Regex("[a-c]*")], [Regex("(ab|cb)*c"), Regex("[abc]{0,3}")]]
options = st.fixed_dictionaries(
    {
        "filters": st.sampled_from(GIVEN),
        "min_tokens": st.sampled_from([0, 0, 2]),
        "stop_tokens": st.sampled_from([[], [97, [98, 99]]]),
        "ignore_eos": st.booleans(),
        "heal": st.booleans(),
    }
)


def asked_for(given_: dict[str, Any], prompt: bytes = b"xab") -> Request:
    checked = Options.of({"max_tokens": 8, **given_})
    prepared = Prompt(tuple(prompt), opens_text=False)
    return Request(prepared, checked, VOCABULARY, SIZE, budget=8, seed=1)


def may_come(request: Request, token: Token) -> bool:
    """Whether the options let a token come, and the parts take it."""
    options, length, free = request.options, len(request.history), request.constraint is None
    early = request.position < options.min_tokens
    if token in VOCABULARY.eos and (early or (options.ignore_eos and not free)):
        return False
    if early and (token,) in options.stop_tokens:
        return False
    if token >= VOCABULARY.size:  # an id without a token: only the filters exclude it
        return free and not request.is_healing
    try:
        request.advance(token)
    except FilterError:
        return False
    request.rewind(length)
    return True


def check(request: Request, plain: Set[Token]) -> None:
    if not plain:
        with pytest.raises(DeadEndError):
            next_mask(request)
        return
    words = next_mask(request)
    assert plain == (set(range(SIZE)) if words is None else set(tokens_of(words).tolist()))


@settings(max_examples=tries(1600))
@given(options, st.lists(st.sampled_from(SPELLED), max_size=3), few, few, st.none() | some, few)
def test_the_mask_allows_what_everybody_allows(
    given_: dict[str, Any],
    tokens: list[Token],
    excluded: set[Token],
    banned: set[Token],
    steered: set[Token] | None,
    also: set[Token],
) -> None:
    request = asked_for(given_)
    for token in tokens:
        if token in VOCABULARY.eos or not may_come(request, token):
            continue
        if request.advance(token) is not None:
            return  # a stop
    position = request.position
    request.retries.ask(position, excluded)
    for token in banned:
        request.retries.exclude(position, token)
        request.retries.exclude(position + 1, 98)  # of another position
    if steered is not None:
        request.steering = Steering(words_of(steered, SIZE))
    plain = {token for token in range(SIZE) if may_come(request, token)} - excluded - banned
    plain = plain if steered is None else plain & steered
    check(request, plain)
    assert leaves_any(request, also) == bool(plain - also)
