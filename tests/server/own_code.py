"""What an operator might register: good programs, and bad ones."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Literal

import mlxgen


async def quiz(g: mlxgen.Guide, city: str = "Paris", sum: int = 7) -> str:
    """Asks two questions, and says goodbye in two ways."""
    await g.fixed("The capital of France is ")
    said = await g.choose([city, "Rome"])
    await g.fixed(", and 3 + 4 = ")
    label = g.label()
    if await g.gen(regex="[0-9]{1,2}") != str(sum):
        await g.backtrack(label)
        await g.fixed(str(sum))
    fork = await g.fork(2)
    await g.fixed([". Bye", ". So long"][fork.index])
    g.append("said", g.text + ". ")
    if fork.index == 0:
        await g.wait(*fork.tasks[1:])
    return said


async def echoes(
    g: mlxgen.Guide, text: str, times: int = 1, *, how: Literal["plain", "twice"] = "plain"
) -> list[str]:
    await g.fixed(text * times * (2 if how == "twice" else 1))
    return [text, how]


async def anything(g: mlxgen.Guide, **given: object) -> dict[str, object]:
    await g.fixed("x")
    return given


async def takes_back(g: mlxgen.Guide) -> str:
    """Writes a word, thinks better of it, and writes another one."""
    start = g.label()
    await g.fixed("Wrong")
    await g.gen(max_tokens=1)  # so that it is delivered
    await g.backtrack(start)
    await g.fixed("Right")
    return g.text


async def wanders(g: mlxgen.Guide) -> None:
    """Writes, and goes back three tokens now and then."""
    for _ in range(3):
        await g.gen(max_tokens=8)
        here = g.label()
        await g.gen(max_tokens=3)
        await g.backtrack(here)


async def raises_at_once(g: mlxgen.Guide) -> None:
    raise KeyError("a")


async def says_nothing(g: mlxgen.Guide) -> int:
    return 5


async def raises_late(g: mlxgen.Guide) -> None:
    await g.gen(max_tokens=5)
    raise LookupError("there is no such thing")


async def returns_no_json(g: mlxgen.Guide) -> object:
    await g.fixed("Hm")
    return {1, 2}


async def endless(g: mlxgen.Guide) -> None:
    """Forks, and writes as long as the context allows."""
    await g.fork(2)
    while True:
        await g.token()


async def bursts(g: mlxgen.Guide, branches: int) -> None:
    await g.fork(branches)
    await g.fixed("x")


async def deadlock(g: mlxgen.Guide) -> None:
    await g.fixed("x")
    await g.until("never")


async def churns(g: mlxgen.Guide) -> None:
    """Never gets on."""
    while True:
        here = g.label()
        await g.fixed("x")
        await g.backtrack(here)


async def poisons(g: mlxgen.Guide, token: int) -> None:
    """Writes something, and then what the model may fail with."""
    await g.gen(max_tokens=3)
    await g.fixed([token])
    await g.gen(max_tokens=3)


async def spends(g: mlxgen.Guide) -> None:
    await g.gen()


class Spells:
    """Writes a text token by token, in its own words: backtracks over each and writes it again."""

    def __init__(self, lm: mlxgen.LanguageModel, text: str) -> None:
        self.left = lm.vocabulary.continue_with(text.encode())
        self.everything = range(lm.vocab_size)
        self.value = "spelled"

    def mid_process(self, branch: int, back: int, appended: Sequence[int]) -> list[mlxgen.Branch]:
        if not self.left:
            return []
        token = self.left.pop(0)
        splice = mlxgen.Splice((), 1, [token])
        return [mlxgen.Branch(sample_mask=self.everything, splices=[splice])]


class Detours:
    """Writes something wrong and a token more, and then writes it again."""

    def __init__(self, lm: mlxgen.LanguageModel) -> None:
        wrong, right = (lm.vocabulary.continue_with(word) for word in (b"One tow", b"One two"))
        any_token = mlxgen.Branch(sample_mask=range(lm.vocab_size))
        self.steps = [
            mlxgen.Branch(ff_tokens=[wrong]),
            any_token,
            mlxgen.Branch(backtrack=len(wrong) + 1, ff_tokens=[right]),
            any_token,
        ]

    def mid_process(self, branch: int, back: int, appended: Sequence[int]) -> list[mlxgen.Branch]:
        return [self.steps.pop(0)] if self.steps else []


def never(result: mlxgen.PostSamplingResult, tokens: list[int]) -> None:
    """Declines some tokens."""
    if result.sampled_token in tokens:
        result.resample = True
        result.exclude = tokens


def restarts(result: mlxgen.PostSamplingResult, after: int = 4) -> None:
    """Takes everything back once, after so many tokens."""
    if result.position == after and not result.attempt:
        result.rewind = after + 1


class Counts:
    """Raises at a token that it counts."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.count = 0

    def __call__(self, result: mlxgen.PostSamplingResult) -> None:
        self.count += 1
        if self.count > self.most:
            raise ValueError(f"that was token {self.count}")


def slow(result: mlxgen.PostSamplingResult) -> None:
    """Holds all others up."""
    time.sleep(0.2)


def looks(result: mlxgen.PostSamplingResult) -> None:
    """Looks at all there is, also at what no draw reports."""
    assert result.logits is not None
    last = int(result.logits.argmin())
    assert len(result.candidate_probs) and result.sampled_prob > 0
    sampled = result.sampled_token
    result.sampled_token = last
    assert result.sampled_prob >= 0 and result.text is not None and result.can_rewind
    result.sampled_token = sampled


# ---- what cannot be registered -----------------------------------------------------------------


def not_async(g: mlxgen.Guide) -> None: ...
async def no_guide() -> None: ...
async def only_keywords(*, text: str) -> None: ...
async def by_position(g: mlxgen.Guide, text: str, /) -> None: ...
async def odd_type(g: mlxgen.Guide, model: mlxgen.LanguageModel) -> None: ...
async def unknown_type(g: mlxgen.Guide, text: NoSuchType) -> None: ...  # type: ignore[name-defined]  # noqa: F821


class NotCalled:
    pass


NUMBER = 7


def short(line: str, before: str, most: int = 10) -> str | None:
    """Lines of at most so many letters."""
    return f"{len(line)} letters" if len(line) > most else None


def _no_city(word: str, before: str, city: str = "Paris") -> str | None:
    """Every city but one."""
    return "the city" if city in word else None


no_city = mlxgen.Checked(_no_city, at=" ", tries=9)
