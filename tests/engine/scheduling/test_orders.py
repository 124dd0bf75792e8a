"""Texts that are steered at random in the company of others, where bytes and places are short."""

from __future__ import annotations

import random
from functools import partial
from typing import Any

import pytest

from mlxgen import MlxgenError, Regex, StateError
from mlxgen.engine import Handle, Request, orders
from tests.effort import tries
from tests.fakes.speaking import Hall

from .test_random_company import PROMPTS, STEP, mumbling


def order_of(dice: random.Random, request: Request) -> partial[None]:
    """Something that a reader may ask, which may not be possible."""
    length = request.position
    kind = dice.randrange(4)
    if kind == 0:
        return partial(orders.keep_only, tokens=dice.randrange(length + 3), to=None)
    if kind == 1:
        return partial(orders.keep_only, tokens=None, to=dice.randrange(length + 3))
    if kind == 2:
        return partial(orders.put, tokens=dice.choices(range(97, 105), k=dice.randint(1, 40)))
    changes: list[dict[str, Any]] = [
        {"temperature": 1.5},
        {"stop": ["abc"]},
        {"filters": [Regex("[a-h]{9,}")]},
    ]
    return partial(orders.change_options, given=dice.choice(changes))


@pytest.mark.parametrize("recurrent", [False, True])
@pytest.mark.parametrize("seed", range(tries(12)))
def test_what_was_told_is_the_text_and_nobody_else_notices(seed: int, recurrent: bool) -> None:
    dice = random.Random(seed)
    speaker = mumbling(recurrent=recurrent)
    hall = Hall(speaker, max_batch=3, max_queue=20, max_bytes=STEP * 12)
    prompts = dice.choices(PROMPTS, k=6)
    handles = [
        hall.submit(prompt, max_tokens=150, seed=1, allow_retract=i < 3, draft="ngram")
        for i, prompt in enumerate(prompts)
    ]
    told = dict.fromkeys(handles, "")

    def note(handle: Handle, text: str, retract: int) -> None:
        before = told[handle]
        assert retract <= len(before)
        told[handle] = before[: len(before) - retract] + text

    while hall.scheduler.busy:
        events = hall.scheduler.step()
        steered = dice.choice(handles[:3])
        if dice.random() < 0.3 and not steered.has_ended:
            before = list(steered.history)
            try:
                events += hall.scheduler.order(steered, order_of(dice, steered.request))
            except MlxgenError:
                assert list(steered.history) == before
        hall.scheduler.check_integrity()
        for handle, chunks, error in events:
            assert error is None
            for chunk in chunks:
                note(handle, chunk.text, chunk.retract)
    for handle, prompt in zip(handles[3:], prompts[3:], strict=True):
        alone = speaker.lm.generate(prompt, max_tokens=150, seed=1, draft="off")
        assert told[handle] == alone.text
    for handle in handles[:3]:
        assert told[handle] == handle.request.outbox.text
        with pytest.raises(StateError, match="has ended"):
            hall.scheduler.order(handle, orders.finish)
