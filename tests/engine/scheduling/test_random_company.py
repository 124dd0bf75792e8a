"""Requests that come, go, go back and fork at random, where bytes and places are short.

Whatever happens to the others: the text of a row is the one that it gives alone.
"""

from __future__ import annotations

import contextlib
import random
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest
from mlx_lm.models.cache import ArraysCache

from mlxgen import Choice, MlxgenError, PostSamplingResult, Regex
from mlxgen.engine.prefix.block import Block
from mlxgen.engine.prefix.block_file import Layout
from mlxgen.engine.prefix.disk import Disk
from mlxgen.engine.prefix.store import BlockStore
from mlxgen.engine.scheduling.scheduler import Scheduler
from mlxgen.engine.step.handle import Handle
from mlxgen.errors import CapacityError
from mlxgen.tokens import Token
from tests.effort import tries
from tests.fakes.prefix_integrity import check_integrity
from tests.fakes.speaking import Hall, Speaker

STEP = 256 * 8  # bytes that a sequence of the scripted model takes at least
PROMPTS = [[63] * n for n in (1, 3, 40, 300, 500)] + [[63] * 200 + [64] * 5, [63] * 100 + [65] * 50]
FILTERS: list[Any] = [
    Regex("[a-d]{30}"),
    Regex("(abc|defg|hx{20})*"),
    Regex("[ab]x{130}[ab]*"),
    Regex(""),
]
FILTERS += [Choice(["abcabcabcabc", "xyz", "ddddddddddd"])]


@cache
def mumbling(*, recurrent: bool = False) -> Speaker:
    """Says letters that depend on all that was said lately, and ends now and then."""

    def say(self: Speaker, generated: list[Token]) -> dict[Token, float]:
        lately = bytes(token % 256 for token in (*generated[-6:], len(generated)))
        dice = random.Random(blake2b(lately).digest())
        ranked = [*dice.sample(range(97, 105), 5), 120, 32]
        if len(generated) > 4 and dice.random() < 0.03:
            ranked.insert(0, self.end)
        return {token: -0.7 * rank for rank, token in enumerate(ranked)}

    caches = {"make_cache": lambda: [ArraysCache(1)]} if recurrent else {}
    return Speaker([], say, **caches)


def no_first_a(result: PostSamplingResult) -> None:
    if result.sampled_token == 97 and result.attempt == 0:
        result.resample = True


def options_of(dice: random.Random) -> dict[str, Any]:
    options: dict[str, Any] = {"max_tokens": dice.choice([1, 2, 5, 20, 60, 150, 300])}
    if dice.random() < 0.3:
        options["filters"] = dice.choice(FILTERS)
    if dice.random() < 0.2:
        options["stop"] = dice.choice([["ab"], ["bca", "c d"], ["a"]])
    if dice.random() < 0.2:
        options["banned"] = dice.choice([["ab"], ["cd", "ef"], ["b"]])
    if dice.random() < 0.3:
        options |= {"temperature": dice.choice([0.5, 1.0]), "seed": dice.randrange(100)}
    if dice.random() < 0.2:
        options["draft"] = dice.choice(["ngram", "off"])
    elif dice.random() < 0.2:
        options["hooks"] = [no_first_a]
    for name, value in {
        "hold_tokens": 3,
        "prefix": [97, 98],
        "heal": True,
        "ignore_eos": True,
    }.items():
        if dice.random() < 0.15:
            options[name] = value
    return options


@dataclass
class Asked:
    """A request, and whether its text must be the one that it gives alone."""

    prompt: list[Token]
    options: dict[str, Any]
    certain: bool = True


class Flaky(Disk):
    """A disk that fails now and then."""

    dice = random.Random(0)

    def read(self, key: str, has_state: bool = False) -> Block:
        if self.dice.random() < 0.1:
            raise OSError("the disk is gone")
        return super().read(key, has_state)


def crowd(dice: random.Random, disk: Path | None = None) -> tuple[Hall, dict[Handle, Asked]]:
    """What happens to a crowd in the order of the dice; all that can is run to its end."""
    recurrent = dice.random() < 0.3
    limits: dict[str, Any] = {
        "max_batch": dice.choice([1, 2, 3, 6, 16]),
        "max_queue": dice.choice([0, 2, 8, 64]),
        "keep_prefixes": dice.random() < 0.7,
    }
    if dice.random() < 0.7:
        of_it = [3, 5, 9, 20] if recurrent else [3, 5.01, 6.5, 9, 14]
        limits["max_bytes"] = int(dice.choice(of_it) * (16384 if recurrent else STEP))
    speaker = mumbling(recurrent=recurrent)
    make = speaker.lm.runtime.make_cache
    flaky = None if disk is None else Flaky(disk, 300_000, Layout(make))
    speaker.lm.runtime.prefix_cache = BlockStore(make, 1 << 20, folder=flaky)
    hall = Hall(speaker, **limits)
    asked: dict[Handle, Asked] = {}
    for event in range(dice.choice([20, 80, 160])):
        if flaky is not None and event % 12 == 0:  # what goes to the disk comes back from there
            speaker.lm.prefix_cache.shrink(0)
        living = [t for t in asked if not t.closed and t not in hall.errors]
        with contextlib.suppress(MlxgenError):
            happen(hall, asked, living, dice)
    for _ in range(60_000):
        if not hall.scheduler.busy:
            return hall, asked
        hall.step()
    raise AssertionError("it never ended")


def happen(
    hall: Hall, asked: dict[Handle, Asked], living: list[Handle], dice: random.Random
) -> None:
    what = dice.random()
    if what < 0.15:
        one = Asked(dice.choice(PROMPTS), options_of(dice))
        asked[hall.submit(list(one.prompt), **one.options)] = one
    elif what > 0.36 or not living:
        hall.step()
    elif what < 0.2:
        handle = dice.choice(living)
        hall.scheduler.cancel(handle)
        asked[handle].certain = False
    elif what < 0.27:
        handle = dice.choice(living)
        one = asked[handle]
        for twin in hall.fork(handle, dice.choice([1, 1, 2, 5])):
            same = one.certain and "temperature" not in one.options
            asked[twin] = Asked(one.prompt, one.options, same)
    else:
        handle = dice.choice(living)
        hall.rewind(handle, dice.randrange(handle.request.position + 1))
        if asked[handle].options.keys() & {"temperature", "hooks"}:  # drawn anew, another way
            asked[handle].certain = False


def alone(speaker: Speaker, one: Asked) -> str:
    """What a request comes to alone: its text, or its error."""
    try:
        return speaker.lm.generate(list(one.prompt), **one.options).text
    except MlxgenError as error:
        return repr(error)


@pytest.mark.parametrize("on_disk", [False, True])
@pytest.mark.parametrize("seed", [*range(tries(60)), 792])
def test_each_of_a_crowd_says_what_it_says_alone(
    seed: int, on_disk: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pieces = random.Random(seed)  # of prompts, which time would tell otherwise
    monkeypatch.setattr(Scheduler, "_chunk", lambda _: pieces.choice([0, 4, 16, 16, 64]))
    hall, asked = crowd(random.Random(seed), tmp_path if on_disk else None)
    for handle, one in asked.items():
        error = hall.errors.get(handle)
        if one.certain and not isinstance(error, CapacityError):
            said = hall.texts[handle] if error is None else repr(error)
            assert said == alone(hall.speaker, one), one
    assert hall.stats.kv_bytes == 0
    check_integrity(hall.speaker.lm.prefix_cache)
    assert hall.speaker.lm.prefix_cache.close(20)
