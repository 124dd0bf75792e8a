"""The mix of all tasks: an endless, seeded stream of training examples.

A block of examples is a pure function of (seed, block number), so a training that is taken up again
sees what it would have seen. The shares of the tasks are in `texts/mixes.json`: reading from the
prompt is learnt first and fast, facts take many repetitions, and the head that drafts gets more of
what is long enough to be worth a draft. This module knows nothing of models.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from demo_model import copying, facts, records, smalltalk, stories, toolcalls
from demo_model.chat import Dialogue
from demo_model.drawing import read


@dataclass(frozen=True, slots=True)
class Example:
    """A prompt that is only read, and the text after it that is learnt."""

    prompt: str
    target: str
    is_chat: bool


CHATS: Final[dict[str, Callable[[Random], Dialogue]]] = {
    "facts": facts.training,
    "facts evenly": facts.training_evenly,
    "drill": facts.training_drill,
    "two facts": facts.training_pair,
    "records": records.training,
    "tool calls": toolcalls.training,
    "copies": copying.training,
    "sums": smalltalk.training_sum,
    "small talk": smalltalk.training,
    "stories": stories.training,
}
_PLAIN: Final = {"raw stories": stories.raw, "raw facts": facts.raw_statement}


@dataclass(frozen=True, slots=True)
class Mix:
    """Shares by number of examples, and the random tokens to repeat, for each example."""

    shares: dict[str, float]
    copies: float


_TEXTS: Final[dict[str, Any]] = read("mixes")
DRAFTED: Final = Mix(**_TEXTS["drafted"])


def mix(number: int) -> Mix:
    """The mix of a block, for the models themselves."""
    *_, last = (each for each in _TEXTS["blocks"] if each["from"] <= max(number, 0))
    return Mix(last["shares"], last["copies"])


def block(seed: int, number: int, size: int, mixed: Mix | None = None) -> list[Example]:
    """`size` examples, always the same ones for the same seed and number."""
    rng = Random(f"{seed}/{number}")
    shares = (mixed or mix(number)).shares
    return [example(name, rng) for name in rng.choices([*shares], [*shares.values()], k=size)]


def example(name: str, rng: Random) -> Example:
    """An example of one of the tasks in the mixes."""
    if name in _PLAIN:
        return Example("", _PLAIN[name](rng), False)
    dialogue = CHATS[name](rng)
    return Example(dialogue.prompt(), dialogue.reply(), True)


def texts(seed: int, count: int) -> Iterator[str]:
    """Texts for training the tokenizer."""
    for number in range(count // 1000):
        for example in block(seed, -1 - number, 1000):
            yield example.prompt + example.target
