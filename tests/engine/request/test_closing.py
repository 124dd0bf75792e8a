"""``close_json`` keeps a valid end within the budget, however the tokens before it are drawn."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxgen import Choice, Session
from tests.fakes import alphabet_tokenizer

from ...effort import tries

TOKENIZER = alphabet_tokenizer()  # a token is a letter
DEEDS = st.one_of(
    st.tuples(st.just("draw"), st.integers(0, 1)),
    st.tuples(st.just("push"), st.integers(0, 1)),
    st.tuples(st.sampled_from(["rewind", "fork"]), st.integers(0, 7)),
)


def draw(session: Session, letter: int) -> None:
    """Draw a letter where it is allowed, and else the other one or what leads to the end."""
    logits = np.zeros(257, np.float32)
    logits[ord("ab"[letter])] = 2
    logits[[ord("a"), ord("b")]] += 1
    session.push_logits(logits)


def seen(session: Session) -> tuple[str, list[int]]:
    """The text, and what may come next."""
    mask = session.mask() if session.finish_reason is None else None
    return session.text, [] if mask is None else mask.tolist()


@settings(max_examples=tries(200))
@given(
    valid=st.lists(st.text("ab", min_size=1, max_size=7), min_size=1, max_size=5, unique=True),
    budget=st.integers(1, 8),
    deeds=st.lists(DEEDS, max_size=20),
)
def test_a_text_ends_validly_if_any_valid_text_fits(
    valid: list[str], budget: int, deeds: list[tuple[str, int]]
) -> None:
    fits = [word for word in valid if len(word) <= budget]
    session = Session(TOKENIZER, filters=Choice(valid), close_json=True, max_tokens=budget)
    for deed, number in deeds:
        if deed == "rewind":
            session.rewind(to=min(number, len(session.tokens)))
        elif deed == "fork":
            before = seen(session)
            (twin,) = session.fork()
            while twin.finish_reason is None:
                draw(twin, number % 2)
            assert seen(session) == before
            session = session.fork()[0] if number > 3 else session
        elif session.finish_reason is None:
            draw(session, number)
        if session.finish_reason is None and fits:
            mask = session.mask()
            assert mask is not None and mask.any()
    while session.finish_reason is None:
        draw(session, 0)
    if fits:
        assert session.text in valid and not session.usage.incomplete
    else:
        assert session.finish_reason == "length" and session.usage.incomplete
