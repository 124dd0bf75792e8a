"""The push interface follows the same rules as a stream."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxgen import Choice, OptionError, Regex, Session, StateError
from mlxgen.filters import tokens_of
from tests.fakes.speaking import PROMPT, Speaker, reciter, talker

from ..effort import tries


class Runner:
    """A caller with a model of its own: keeps what it holds, runs what is pending."""

    def __init__(self, speaker: Speaker) -> None:
        self.speaker = speaker
        self.held: list[int] = []

    def logits(self, session: Session) -> np.ndarray:
        del self.held[session.keep :]
        assert session.pending
        self.held += session.pending
        assert self.held == session.history
        wanted = self.speaker.model.script(tuple(self.held))
        assert not isinstance(wanted, dict)
        out = np.full(self.speaker.vocabulary.size, -50.0, dtype=np.float32)
        for rank, token in enumerate(wanted):
            out[token] = -rank
        return out


def drive(
    speaker: Speaker, prompt: list[int] = PROMPT, **options: Any
) -> tuple[Session, Runner, str]:
    """A session to its end, which uses one position a push, or says how many it took back."""
    session, runner = Session(speaker.tokenizer, prompt=prompt, **options), Runner(speaker)
    text = ""
    while session.finish_reason is None:
        before = len(session.tokens)
        chunk = session.push_logits(runner.logits(session))
        assert (chunk.index, len(session.tokens)) == (before, before + 1 - chunk.rewound)
        text += chunk.text
    return session, runner, text


RECITER = reciter(["x", "st", "o", "nes", " stop", "!"])
TALKER = talker({"": ["a"], "a": ["b", "x"], "ab": ["c"], "ax": []})
HEALED = Speaker(
    ["http", "://"],
    lambda self, generated: [self.token("://")] if not generated else [ord("w")],
)
CASES: list[tuple[Speaker, list[int], dict[str, Any]]] = [
    (RECITER, PROMPT, {}),
    (RECITER, PROMPT, {"stop": ["stop"]}),
    (RECITER, PROMPT, {"max_tokens": 3}),
    (RECITER, PROMPT, {"banned": ["nes"]}),
    (RECITER, PROMPT, {"stop_tokens": [[ord("!")]]}),
    (RECITER, PROMPT, {"hooks": [lambda r: setattr(r, "resample", r.attempt == 0)]}),
    (TALKER, PROMPT, {"banned": "bc"}),
    (HEALED, HEALED.tokens(["http", ":"]), {"heal": True, "max_tokens": 3}),
]


def test_a_session_says_what_a_stream_says() -> None:
    for speaker, prompt, options in CASES:
        session, _, text = drive(speaker, prompt, **options)
        result = speaker.lm.generate(prompt, **options)
        assert text == session.text == result.text
        told = (tuple(session.tokens), session.finish_reason)
        assert told == (result.tokens, result.finish_reason)


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
    *_, expected = drive(speaker, **options)
    session, runner = Session(speaker.tokenizer, prompt=PROMPT, **options), Runner(speaker)
    for forward, back in moves:
        for _ in range(forward):
            if session.finish_reason is None:
                session.push_logits(runner.logits(session))
        session.rewind(tokens=min(back, len(session.tokens)))
        (session,) = session.fork()
    while session.finish_reason is None:
        session.push_logits(runner.logits(session))
    assert session.text == expected


def test_keep_never_covers_what_was_taken_back_even_if_tokens_are_pushed_since() -> None:
    speaker = reciter(list("aaaaaaaa"))
    session, runner = Session(speaker.tokenizer, prompt=[5, 6, 7]), Runner(speaker)
    for _ in range(4):
        session.push_logits(runner.logits(session))
    session.rewind(tokens=3)
    for _ in range(4):
        session.push_token(ord("b"))
    assert session.keep == 4
    assert session.pending == [ord("b")] * 4
