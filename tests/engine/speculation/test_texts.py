"""Texts are remembered once, as long as there is room."""

from __future__ import annotations

import random

import pytest

from mlxgen.engine.history import History
from mlxgen.engine.speculation.matcher import Matcher
from mlxgen.engine.speculation.places import NOTHING, Places
from mlxgen.engine.speculation.texts import EDGE, Texts
from mlxgen.tokens import Token


def some(seed: int, count: int) -> list[Token]:
    rng = random.Random(seed)
    return [rng.randrange(50_000) for _ in range(count)]


def knows(texts: Texts, text: list[Token]) -> float:
    """The share of the tokens after its first three that the texts know to come next."""
    right = 0
    matcher, history = Matcher(texts), History(text[:3])
    for token in text[3:]:
        match = matcher.at(history)
        right += match is not None and match.next()[0][0] == token
        history.append(token)
    return right / (len(text) - 3)


def test_a_text_is_known_after_it_was_added() -> None:
    texts, text = Texts(), some(1, 500)
    assert knows(texts, text) == 0
    texts.add(text)
    assert knows(texts, text) == 1


def test_a_conversation_that_is_sent_again_each_turn_is_kept_once() -> None:
    texts, conversation = Texts(), some(2, 2000)
    texts.add(conversation)
    for turn in range(20):
        conversation += some(3 + turn, 300)
        texts.add(conversation)
    assert len(texts) <= len(conversation) + 20 * (EDGE + 1) + 1
    assert knows(texts, conversation) == 1


def test_what_is_new_in_the_middle_of_a_known_text_is_kept_with_its_edges() -> None:
    texts, text = Texts(), some(4, 1000)
    texts.add(text)
    edited = text[:500] + some(5, 10) + text[510:]
    texts.add(edited)
    assert len(texts) <= 1001 + 10 + 2 * EDGE + 1
    assert knows(texts, edited[490:530]) == 1


def test_the_oldest_texts_go_first() -> None:
    texts = Texts(4096)
    for seed in range(20):
        texts.add(some(seed, 500))
        assert len(texts) <= 4096
    assert knows(texts, some(0, 500)) == 0
    assert all(knows(texts, some(seed, 500)) == 1 for seed in range(17, 20))


def test_what_is_used_again_stays() -> None:
    texts, used = Texts(4096), some(99, 300)
    for seed in range(40):
        texts.add(some(seed, 300))
        texts.add(used)
    assert knows(texts, used) == 1


def test_of_a_long_text_the_end_is_kept() -> None:
    texts, text = Texts(4096), some(6, 10_000)
    texts.add(text)
    assert len(texts) <= 2048
    assert knows(texts, text[-2000:]) == 1


def test_a_token_takes_at_most_24_bytes() -> None:
    texts = Texts(1 << 14)
    for seed in range(40):
        texts.add(some(seed, 1000))
        assert texts.nbytes <= 24 * len(texts) + 2048
    assert texts.nbytes <= 24 << 14


def test_another_thread_finds_a_text_only_when_all_of_it_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    link, last = Places._link_next, set()

    def watched(places: Places) -> None:
        last.add(places.tokens[-1])
        link(places)

    monkeypatch.setattr(Places, "_link_next", watched)
    Texts().add(some(8, 20))
    assert last == {NOTHING}  # with which each text ends


def test_images_are_neither_found_nor_proposed() -> None:
    patch = -(10**30)
    texts = Texts()
    texts.add([1, 2, 3, patch, patch, patch, 4, 5, 6, 7])
    for end in ([1, 2, 3], [patch, patch, patch]):
        assert Matcher(texts).at(History(end)) is None
    match = Matcher(texts).at(History([9, 4, 5, 6]))
    assert match is not None and match.length == 3


def test_one_owner_does_not_see_the_texts_of_another() -> None:
    mine, theirs = Texts(), Texts()
    mine.add(some(7, 100))
    assert knows(theirs, some(7, 100)) == 0
