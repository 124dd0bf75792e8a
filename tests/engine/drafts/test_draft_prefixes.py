"""What a model that drafts has run of a conversation is there for its next turn."""

from __future__ import annotations

import pytest

from tests.fakes.speaking import Hall, Speaker, endless, letters

STEP = 256 * 8  # bytes by which the KV of a model here grows
LONG = [63] * 200


def tokens_run(speaker: Speaker) -> int:
    return sum(len(row) for rows in speaker.model.rows for row in rows)


@pytest.mark.parametrize("beside_others", [True, False])
def test_the_draft_of_a_second_turn_runs_what_is_new_only(beside_others: bool) -> None:
    speaker, draft = endless(), endless()
    hall, said = Hall(speaker), letters(24, 199)
    for prompt, count in ((LONG, 24), ([*LONG, *said.encode()], 8)):
        draft.model.forget()
        if beside_others:
            handle = hall.submit(prompt, max_tokens=count, draft=draft.lm)
            hall.finish()
            text, usage = hall.texts[handle], handle.usage
        else:
            with speaker.lm.stream(prompt, max_tokens=count, draft=draft.lm) as stream:
                text = "".join(chunk.text for chunk in stream)
                stream.keep()
                usage = stream.usage
        assert text == letters(count, len(prompt) - 1) and usage.accepted_draft_tokens
        assert tokens_run(draft) >= 200 if prompt is LONG else tokens_run(draft) < 24


@pytest.mark.parametrize("is_narrow", [True, False])
def test_both_models_keep_their_prefixes_within_one_limit(is_narrow: bool) -> None:
    speaker, draft = endless(), endless()
    hall = Hall(speaker, max_bytes=(5 if is_narrow else 50) * STEP)
    hall.submit(LONG, max_tokens=24, draft=draft.lm)
    hall.finish()
    own, drafted = speaker.lm.prefix_cache, draft.lm.prefix_cache
    before = drafted.nbytes
    assert before and hall.stats.cache_bytes == own.nbytes + before
    for first in range(64, 70):  # without a draft, they take the room of what is kept
        hall.submit([first] * 300, max_tokens=8)
    hall.finish()  # the sum is looked at in every step
    assert own.nbytes and drafted.nbytes < before if is_narrow else drafted.nbytes == before


def test_a_model_that_drafts_for_itself_counts_its_prefixes_once() -> None:
    speaker = endless()
    hall = Hall(speaker, max_bytes=50 * STEP)
    hall.submit(LONG, max_tokens=24, draft=speaker.lm)
    hall.finish()
    assert hall.stats.cache_bytes == speaker.lm.prefix_cache.nbytes > 0
