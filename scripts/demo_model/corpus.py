"""The mix of all tasks: an endless, seeded stream of training examples.

A block of examples is a pure function of (seed, block number), so that every training with a seed
sees the same examples. The shares of the tasks are in ``texts/mixes.json``: reading from the prompt
is learnt first and fast, facts take many repetitions, and the head that drafts gets more of the
tasks whose texts are long enough to be worth a draft. This module knows nothing about models.
"""

from collections.abc import Callable, Iterator
from random import Random
from typing import Any, Final, NamedTuple

from demo_model import forms, knowledge, texts
from demo_model.chat import Dialogue
from demo_model.drawing import read


class Example(NamedTuple):
    """A prompt, which is only read, and the text after it, which is learnt."""

    prompt: str
    target: str
    is_chat: bool


_CHATS: Final[dict[str, Callable[[Random], Dialogue]]] = {
    "facts": knowledge.fact,
    "facts evenly": knowledge.fact_evenly,
    "drill": knowledge.drill,
    "two facts": knowledge.two_facts,
    "records": forms.record,
    "tool calls": forms.tool_call,
    "copies": texts.copy,
    "sums": knowledge.worked_sum,
    "small talk": knowledge.small_talk,
    "stories": texts.story,
}
_PLAIN: Final = {"raw stories": texts.raw_story, "raw facts": knowledge.statements}


class Mix(NamedTuple):
    """The shares of the tasks among examples, and the rows of random tokens per example."""

    shares: dict[str, float]
    copies: float


_MIXES: Final[dict[str, Any]] = read("mixes")
DRAFTED: Final = Mix(**_MIXES["drafted"])


def mix(number: int) -> Mix:
    """The mix of a block, for the main and the draft model."""
    *_, last = (each for each in _MIXES["blocks"] if each["from"] <= max(number, 0))
    return Mix(last["shares"], last["copies"])


def block(seed: int, number: int, size: int, mixed: Mix | None = None) -> list[Example]:
    """``size`` examples, the same ones for the same seed and number."""
    rng = Random(f"{seed}/{number}")
    shares = (mixed or mix(number)).shares
    return [example(name, rng) for name in rng.choices([*shares], [*shares.values()], k=size)]


def example(name: str, rng: Random) -> Example:
    """An example of one of the tasks in the mixes."""
    if name in _PLAIN:
        return Example("", _PLAIN[name](rng), False)
    dialogue = _CHATS[name](rng)
    return Example(dialogue.prompt(), dialogue.reply(), True)


def of_all_tasks(seed: int, count: int) -> Iterator[str]:
    """Texts for training the tokenizer."""
    for number in range(count // 1000):
        for example in block(seed, -1 - number, 1000):
            yield example.prompt + example.target
