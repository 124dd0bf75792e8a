"""Chats on models with windows and recurrent states, and prompts that were given up: each goes on
from where it should."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxgen import LanguageModel, Limits
from mlxgen.chat import Chat
from mlxgen.engine.options import Options
from mlxgen.engine.prefix.blocks import places_of, spacing_of
from mlxgen.engine.scheduling.scheduler import Scheduler
from mlxgen.engine.step.handle import Handle
from mlxgen.tokens import in_common
from tests.fakes import alphabet_tokenizer
from tests.fakes.architectures import SIDE_BY_SIDE, cache_kinds
from tests.fakes.paces import Still
from tests.fakes.prefix_integrity import check_integrity
from tests.fakes.speaking import Hall, endless, letters

from ...effort import tries

TRIED = ("rotating", "recurrent", "hybrid")
KINDS = [
    pytest.param(kind, marks=[] if kind in TRIED else pytest.mark.slow)
    for kind in cache_kinds()
    if kind not in SIDE_BY_SIDE  # which go on from anywhere
]
TEMPLATE = (
    "{% for message in messages %}<{{ message['role'] | upper }}>\n"
    "{{ message['content'] | upper }}</>\n{% endfor %}"
    "{% if add_generation_prompt %}<ASSISTANT>\n{% endif %}"
)
"""In capital letters: the models know 96 tokens, each of them a byte."""
SYSTEM = "You are a clerk who files letters by their colour, never by their date. "
LONG = "There was a letter about the sea, and nobody had written it. "
_models: dict[str, LanguageModel] = {}


class Office:
    """A scheduler whose sequences all end."""

    def __init__(self, kind: str, **limits: Any) -> None:
        if kind not in _models:
            model, make = cache_kinds()[kind]()
            lm = _models[kind] = LanguageModel(model, alphabet_tokenizer())
            lm.tokenizer._tokenizer.chat_template = TEMPLATE
            lm.runtime.make_cache = make  # type: ignore[method-assign]
            lm.max_context = None
            lm.runtime.pace = Still()
        self.lm = _models[kind]
        self.lm.prefix_cache.clear()
        self.scheduler = Scheduler(self.lm.runtime, Limits(**limits))

    def tokens(self, *messages: str) -> list[int]:
        """The prompt of a chat: a system prompt, and then a user and the model in turn."""
        roles = ["system", *["user", "assistant"] * len(messages)]
        said = zip(roles, messages, strict=False)
        return Chat([{"role": r, "content": m} for r, m in said]).tokens(self.lm.vocabulary)

    def submit(self, prompt: Sequence[int], count: int = 4) -> Handle:
        options = Options.of(
            {"max_tokens": count, "temperature": 0, "ignore_eos": True, "draft": "off"}
        )
        return self.scheduler.submit(self.lm.runtime.prepare(prompt, options))

    def finish(self, *handles: Handle) -> list[list[int]]:
        said: dict[Handle, list[int]] = {handle: [] for handle in handles}
        while not all(handle.closed for handle in handles):
            for event in self.scheduler.step():
                assert event.error is None
                tokens = [chunk.token for chunk in event.chunks]
                said[event.handle] += [token for token in tokens if token is not None]
            self.scheduler.check_integrity()
        if self.scheduler.cache is not None:
            check_integrity(self.scheduler.cache)
        return list(said.values())

    def ask(self, prompt: Sequence[int], count: int = 4) -> tuple[int, list[int]]:
        """How many tokens came from the prefix cache, and the answer."""
        handle = self.submit(prompt, count)
        (said,) = self.finish(handle)
        return handle.usage.cached_tokens, said

    def beginning_of(self, number: int, messages: Sequence[str]) -> int:
        """Where one of these messages begins in their prompt."""
        return len(self.tokens(*messages[:number])) - len("<ASSISTANT>\n")


def alone(kind: str, prompt: Sequence[int], count: int = 4) -> list[int]:
    return Office(kind, keep_prefixes=False).ask(prompt, count)[1]


TALKS: list[list[tuple[tuple[str, ...], int]]] = [
    [((SYSTEM, "Why blue?"), 0), ((SYSTEM, "And who sent it?"), 1)],
    [  # the first answer is as if it were reasoning, which is left out later
        ((SYSTEM, LONG), 0),
        ((SYSTEM, LONG, "It is blue.", "Why is it?"), 2),
        ((SYSTEM, LONG, "It is blue.", "Then the other."), 3),
    ],
    [((SYSTEM, LONG), 0), ((SYSTEM, LONG), 2)],
]
"""What is said, and how many messages of it the prefix cache has."""


@pytest.mark.parametrize("kind", KINDS)
def test_a_chat_goes_on_from_the_last_place_that_others_share(kind: str) -> None:
    for talk in TALKS:
        office = Office(kind, prefill_chunk=100)
        for messages, known in talk:
            cached, _ = office.ask(office.tokens(*messages), 40)
            assert cached == (office.beginning_of(known, messages) if known else 0)


@pytest.mark.parametrize("kind", KINDS)
def test_the_third_prompt_that_parts_in_the_same_place_starts_there(kind: str) -> None:
    office = Office(kind, prefill_chunk=100)
    prompts = [office.tokens(SYSTEM, LONG * 3 + end) for end in ("Blue?", "Red, then?", "Or?")]
    cached = [office.ask(prompt)[0] for prompt in prompts]
    assert cached == [0, office.beginning_of(1, [SYSTEM]), in_common(*prompts[:2])]


@pytest.mark.parametrize("kind", KINDS)
def test_chats_that_come_together_run_their_system_prompt_once(kind: str) -> None:
    office = Office(kind, prefill_chunk=40)
    prompts = [office.tokens(SYSTEM, text) for text in ("Why blue?", "And who sent it?", "Red?")]
    handles = [office.submit(prompt) for prompt in prompts]
    said = office.finish(*handles)
    end = office.beginning_of(1, [SYSTEM])
    assert sorted(handle.usage.cached_tokens for handle in handles) == [0, end, end]
    assert said == [alone(kind, prompt) for prompt in prompts]


@pytest.mark.parametrize("kind", KINDS)
def test_the_next_turn_starts_from_the_end_of_the_answer(kind: str) -> None:
    office = Office(kind)
    prompt = office.tokens(SYSTEM, "Why blue?")
    _, said = office.ask(prompt, 20)
    longer = [*prompt, *said, *b"</>\n<USER>\nWHY?</>\n<ASSISTANT>\n"]
    cached, answer = office.ask(longer)
    assert len(prompt) + 19 <= cached <= len(prompt) + 20
    assert answer == alone(kind, longer)


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_text_again_runs_its_last_token_only(kind: str) -> None:
    raw = list(LONG.upper().encode() * 2)
    said, office = alone(kind, raw), Office(kind)
    assert [office.ask(raw) for _ in range(2)] == [(0, said), (len(raw) - 1, said)]


@pytest.mark.parametrize("kind", ["plain", "recurrent"])
def test_nothing_is_kept_where_only_a_piece_ends(kind: str) -> None:
    office = Office(kind, prefill_chunk=20)
    raw = list(LONG.upper().encode() * 3)
    handle = office.submit(raw)
    while handle.prefilled < len(raw) - 20:
        office.scheduler.step()
        assert office.lm.prefix_cache.entries == 0
    office.finish(handle)
    assert office.lm.prefix_cache.match([*raw, 0]) >= len(raw) - 1


@pytest.mark.parametrize("kind", ["recurrent", "hybrid"])
def test_a_long_conversation_leaves_the_end_of_its_system_prompt_to_others(kind: str) -> None:
    office = Office(kind, prefill_chunk=200)
    chat = [SYSTEM * 6, "Why blue?"]
    office.ask(office.tokens(*chat))
    cache = office.lm.prefix_cache
    most, cache.max_bytes = cache.max_bytes, 3 * cache.nbytes
    try:
        before = 0
        for number in range(12):
            chat += [LONG, f"And letter {number}?"]
            cached, _ = office.ask(office.tokens(*chat))
            assert cached > before  # it goes on from its last turn, and not from the beginning
            before = cached
        cached, _ = office.ask(office.tokens(SYSTEM * 6, "Who are you?"))
        assert cached == office.beginning_of(1, [SYSTEM * 6])
    finally:
        cache.max_bytes = most


CHATS = st.lists(
    st.tuples(st.integers(0, 3), st.lists(st.integers(0, 2), min_size=1, max_size=3)),
    min_size=2,
    max_size=4,
)
SAID = (LONG, "Why blue?", f"{LONG}It was red. ")


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=tries(24))
@given(turns=CHATS, together=st.booleans())
def test_chats_that_grow_part_and_come_again_are_answered_as_without_what_is_kept(
    kind: str, turns: list[tuple[int, list[int]]], together: bool
) -> None:
    kept, fresh = Office(kind, prefill_chunk=70), Office(kind, keep_prefixes=False)
    chat: list[str] = [SYSTEM]
    prompts = []
    for back, more in turns:
        chat = [*chat[: max(1, len(chat) - back)], *(SAID[each] for each in more)]
        prompts.append(kept.tokens(*chat))
    if together:
        said = kept.finish(*(kept.submit(prompt) for prompt in prompts))
    else:
        said = [kept.ask(prompt)[1] for prompt in prompts]
    assert said == [fresh.ask(prompt)[1] for prompt in prompts]


def test_snapshots_between_messages_are_further_apart_where_each_takes_more_memory() -> None:
    assert [spacing_of(size * 1_000_000, 24_000) for size in (3, 75, 400)] == [512, 3125, 4096]
    spaced = [100, 700, 1300, 1900, 2500, 2800, 2900, 3000]  # of the last two messages each has one
    assert places_of(range(100, 3000, 100), 3000, 512) == spaced


# ---- prompts that are given up -----------------------------------------------------------------


@pytest.mark.parametrize("pieces", [1, 2])
@pytest.mark.parametrize("kind", [kind for kind in cache_kinds() if kind != "concatenating"])
def test_who_asks_again_goes_on_from_there_whatever_the_caches(kind: str, pieces: int) -> None:
    prompt = [(7 * i) % 89 for i in range(90)]
    expected = alone(kind, prompt, 6)
    office = Office(kind, prefill_chunk=20)
    ran = 0
    for asked in (1, 2):  # and gives it up again
        gone = office.submit(prompt)
        for _ in range(pieces):
            office.scheduler.step()
        ran = gone.prefilled
        assert ran == asked * pieces * 20
        office.scheduler.cancel(gone)
        office.scheduler.check_integrity()
    assert office.ask(prompt, 6) == (ran, expected)


# ---- what a model that drafts has run -----------------------------------------------------------

GROWN = 256 * 8  # bytes by which the KV of a model here grows
ASKED = [63] * 200


def test_the_draft_of_a_stream_runs_what_is_new_in_its_second_turn_only() -> None:
    speaker, draft = endless(), endless()
    for prompt, count in ((ASKED, 24), ([*ASKED, *letters(24, 199).encode()], 8)):
        draft.model.forget()
        with speaker.lm.stream(prompt, max_tokens=count, draft=draft.lm) as stream:
            assert "".join(chunk.text for chunk in stream) == letters(count, len(prompt) - 1)
            stream.keep()
            assert stream.usage.accepted_draft_tokens
    assert sum(map(len, draft.model.fed)) < 24


def test_a_model_that_drafts_for_itself_counts_its_prefixes_once() -> None:
    speaker = endless()
    hall = Hall(speaker, max_bytes=50 * GROWN)
    hall.submit(ASKED, max_tokens=24, draft=speaker.lm)
    hall.finish()
    assert hall.stats.cache_bytes == speaker.lm.prefix_cache.nbytes > 0
