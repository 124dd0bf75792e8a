"""The mix of all tasks: an endless, seeded stream of training examples.

Owns the shares of the tasks. A block of examples is a pure function of (seed, block number), so a
training that is taken up again sees what it would have seen. It knows nothing of models.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random
from typing import Final

from demo_model import copying, facts, records, smalltalk, stories, toolcalls
from demo_model.chat import Dialogue


@dataclass(frozen=True, slots=True)
class Example:
    """A prompt that is only read, and the text after it that is learnt."""

    prompt: str
    target: str
    is_chat: bool


def _chat(make: Callable[[Random], Dialogue]) -> Callable[[Random], Example]:
    def example(rng: Random) -> Example:
        dialogue = make(rng)
        return Example(dialogue.prompt(), dialogue.reply(), True)

    return example


def _raw(make: Callable[[Random], str]) -> Callable[[Random], Example]:
    return lambda rng: Example("", make(rng), False)


MAKERS: Final[dict[str, Callable[[Random], Example]]] = {
    "facts": _chat(facts.training),
    "facts evenly": _chat(facts.training_evenly),
    "drill": _chat(facts.training_drill),
    "two facts": _chat(facts.training_pair),
    "records": _chat(records.training),
    "tool calls": _chat(toolcalls.training),
    "copies": _chat(copying.training),
    "sums": _chat(smalltalk.training_sum),
    "small talk": _chat(smalltalk.training),
    "stories": _chat(stories.training),
    "raw stories": _raw(stories.raw),
    "raw facts": _raw(facts.raw_statement),
}


@dataclass(frozen=True, slots=True)
class Mix:
    """Shares by number of examples, and the random tokens to repeat, for each example."""

    shares: dict[str, float]
    copies: float


# Reading from the prompt is learnt first and fast; facts take many repetitions.
_EARLY: Final = Mix(
    {
        "facts": 0.34,
        "two facts": 0.03,
        "records": 0.22,
        "tool calls": 0.14,
        "copies": 0.13,
        "sums": 0.03,
        "small talk": 0.03,
        "stories": 0.03,
        "raw stories": 0.04,
        "raw facts": 0.01,
    },
    copies=0.12,
)
_LATE: Final = Mix(
    {
        "facts": 0.28,
        "facts evenly": 0.25,
        "two facts": 0.02,
        "records": 0.15,
        "tool calls": 0.12,
        "copies": 0.06,
        "sums": 0.04,
        "small talk": 0.03,
        "stories": 0.02,
        "raw stories": 0.025,
        "raw facts": 0.005,
    },
    copies=0.05,
)
_LAST: Final = Mix(
    {
        "facts": 0.15,
        "facts evenly": 0.23,
        "drill": 0.2,
        "two facts": 0.02,
        "records": 0.13,
        "tool calls": 0.11,
        "copies": 0.035,
        "sums": 0.07,
        "small talk": 0.02,
        "stories": 0.015,
        "raw stories": 0.015,
        "raw facts": 0.005,
    },
    copies=0.03,
)
_FINAL: Final = Mix(
    {
        "facts": 0.1,
        "facts evenly": 0.2,
        "drill": 0.22,
        "two facts": 0.02,
        "records": 0.12,
        "tool calls": 0.1,
        "copies": 0.03,
        "sums": 0.16,
        "small talk": 0.02,
        "stories": 0.01,
        "raw stories": 0.015,
        "raw facts": 0.005,
    },
    copies=0.02,
)
# For the head that drafts: more of what is long enough to be worth a draft.
DRAFTED: Final = Mix(
    {
        "facts": 0.14,
        "facts evenly": 0.14,
        "two facts": 0.02,
        "records": 0.22,
        "tool calls": 0.15,
        "copies": 0.11,
        "sums": 0.05,
        "small talk": 0.03,
        "stories": 0.08,
        "raw stories": 0.05,
        "raw facts": 0.01,
    },
    copies=0.05,
)
_MIXES: Final = ((0, _EARLY), (8, _LATE), (14, _LAST), (20, _FINAL))  # from which block on


def mix(number: int) -> Mix:
    """The mix of a block, for the models themselves."""
    return [mix for start, mix in _MIXES if start <= max(number, 0)][-1]


def block(seed: int, number: int, size: int, mixed: Mix | None = None) -> list[Example]:
    """`size` examples, always the same ones for the same seed and number."""
    rng = Random(f"{seed}/{number}")
    shares = (mixed or mix(number)).shares
    names = rng.choices(list(shares), list(shares.values()), k=size)
    return [MAKERS[name](rng) for name in names]


def texts(seed: int, count: int) -> Iterator[str]:
    """Texts for training the tokenizer."""
    for number in range(count // 1000):
        for example in block(seed, -1 - number, 1000):
            yield example.prompt + example.target
