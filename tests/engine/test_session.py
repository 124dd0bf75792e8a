"""The push interface: what it forces, what it refuses, and going back. That its texts are those of
streams is told by the table of generations."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxgen import Choice, OptionError, PostSamplingResult, Regex, Session, StateError
from mlxgen.filters import tokens_of
from tests.fakes.speaking import PROMPT, reciter

from ..effort import tries
from .kit import Caller, in_session


def test_mask_and_forced_tokens_are_the_filters() -> None:
    speaker = reciter([])
    session = Session(speaker.tokenizer, filters=[Choice(["yes", "yellow"])])
    mask = session.mask()
    assert mask is not None and list(tokens_of(mask)) == [ord("y")]
    assert session.forced() == [ord("y"), ord("e")]
    assert session.push_token(ord("y")).token == ord("y")
    assert session.push_token(ord("e")).text == "e"
    with pytest.raises(Exception, match="z"):
        session.push_token(ord("z"))
    assert len(session.tokens) == 2
    session.push_token(ord("s"))
    assert session.finish_reason == "filter"
    with pytest.raises(StateError):
        session.push_token(ord("s"))
    session.rewind(tokens=1)
    assert session.finish_reason is None


def test_the_only_way_to_a_valid_end_is_forced() -> None:
    speaker = reciter([])
    session = Session(
        speaker.tokenizer, filters=[Regex("[a-z]*(;b)?!")], close_json=True, max_tokens=4
    )
    for letter in b"abcd":
        session.push_token(letter)
        if session.forced():
            break
    assert session.forced() == [ord("!")] and session.tokens == list(b"abc")
    mask = session.mask()
    assert mask is not None and list(tokens_of(mask)) == [ord("!")]
    session.push_token(ord("!"))
    assert session.text == "abc!" and session.finish_reason == "filter"


def test_finish_delivers_what_was_held() -> None:
    speaker = reciter(["a", "<"])
    session = Session(speaker.tokenizer, stop="<think>")
    session.push_token(ord("a"))
    assert session.push_token(ord("<")).text == ""
    with pytest.raises(OptionError, match="reason"):
        session.finish("done")  # type: ignore[arg-type]
    last = session.finish()
    assert (last.text, last.token, last.finish_reason) == ("<", None, "stop")
    assert session.text == "a<"
    assert session.finish().text == ""


def test_what_a_session_cannot_do_and_what_is_no_token_are_refused() -> None:
    speaker = reciter(list("abc"))
    for draft in ("ngram", speaker.lm):
        with pytest.raises(OptionError, match="draft"):
            Session(speaker.tokenizer, draft=draft)
    session = Session(speaker.tokenizer, draft="off")
    for wrong in ("a", -1, 1 << 20, None):
        with pytest.raises(OptionError) as error:
            session.push_token(wrong)  # type: ignore[arg-type]
        assert error.value.field == "token"
    for logits, said in (([0.0] * 5, "vocab_size=5"), (None, "numbers"), ("abc", "numbers")):
        with pytest.raises(OptionError, match=said):
            session.push_logits(logits)
    assert session.tokens == []


@settings(max_examples=tries(40))
@given(moves=st.lists(st.tuples(st.integers(1, 5), st.integers(0, 4)), max_size=6))
def test_rewinding_and_pushing_again_gives_what_one_go_gives(moves: list[tuple[int, int]]) -> None:
    speaker = reciter(list("abcdefghij"))
    options: dict[str, Any] = {"stop": "gh", "filters": [Regex("[a-z]*")]}
    expected, _, _ = in_session(speaker, **options)
    session, caller = Session(speaker.tokenizer, prompt=PROMPT, **options), Caller(speaker)
    for forward, back in moves:
        for _ in range(forward):
            if session.finish_reason is None:
                caller.push(session)
        session.rewind(tokens=min(back, len(session.tokens)))
        (session,) = session.fork()
    while session.finish_reason is None:
        caller.push(session)
    assert session.text == expected


def test_keep_never_covers_what_was_taken_back_even_if_tokens_are_pushed_since() -> None:
    speaker = reciter(list("aaaaaaaa"))
    session, caller = Session(speaker.tokenizer, prompt=[5, 6, 7]), Caller(speaker)
    for _ in range(4):
        caller.push(session)
    session.rewind(tokens=3)
    for _ in range(4):
        session.push_token(ord("b"))
    assert session.keep == 4
    assert session.pending == [ord("b")] * 4


def test_what_a_ban_takes_back_of_a_run_that_a_hook_put_is_not_of_the_token_before() -> None:
    def hook(result: PostSamplingResult) -> None:
        result.put = list(b"xyz") if result.position == 0 else ()

    session = Session(reciter("a").tokenizer, hooks=[hook], banned=["yz"])
    chunk = session.push_token(ord("a"))
    assert (chunk.rewound, session.tokens, session.text) == (0, list(b"ax"), "ax")
