"""Passages to copy, and the random strings that teach copying.

Owns what is copied: passages of the stories' kind, lists of random words, and made-up words.
"""

from random import Random
from typing import Any, Final

from demo_model import stories
from demo_model.chat import Dialogue, Message
from demo_model.drawing import foreign, is_for_exam, made_up_word, read, words

_TEXTS: Final[dict[str, Any]] = read("copying")
_POOL: Final = tuple(
    dict.fromkeys(
        (
            *words("items", "colors", "animals", "hobbies", "places", "treasures", "weathers"),
            *words("story_adjectives", "creatures", "events", "rooms", "elements", "opposites"),
            *("the", "a", "and", "of", "in", "to", "was", "is", "with", "on"),
        )
    )
)


def passage(rng: Random, count: int) -> str:
    """`count` words of the stories' kind."""
    while True:
        lines = stories.sentences(rng, stories.cast(rng))
        tokens = " ".join(lines[rng.randrange(len(lines) - 2) :]).split(" ")
        if len(tokens) >= count:
            return " ".join(tokens[:count])


def training(rng: Random) -> Dialogue:
    """A passage, a list of words or some made-up words to repeat, never those of the exam."""
    draw = rng.random()
    while True:
        if draw < 0.5:
            text = passage(rng, rng.randint(3, 28))
        elif draw < 0.65:
            tokens = passage(rng, rng.randint(4, 24)).split(" ")
            rng.shuffle(tokens)
            text = " ".join(tokens)
        elif draw < 0.85:
            pool = rng.sample(_POOL, rng.randint(4, 40))
            text = " ".join(rng.choice(pool) for _ in range(rng.randint(2, 24)))
        else:
            text = " ".join(_odd_word(rng) for _ in range(rng.randint(1, 10)))
        if not is_for_exam(text):
            return _dialogue(rng, text, "I copy the text." if rng.random() < 0.1 else None)


def exam(rng: Random) -> Dialogue:
    """Twenty words of the stories' kind that training never shows as one passage."""
    while True:
        text = passage(rng, 20)
        if is_for_exam(text):
            return _dialogue(rng, text, None)


def random_tokens(rng: Random, vocabulary: range, longest: int) -> list[int]:
    """Random tokens to be repeated, from the whole vocabulary or from a small pool."""
    length = rng.randint(2, longest)
    if rng.random() < 0.5:
        return [rng.choice(vocabulary) for _ in range(length)]
    pool = [rng.choice(vocabulary) for _ in range(max(3, int(length * rng.uniform(0.3, 1.2))))]
    return [rng.choice(pool) for _ in range(length)]


def _dialogue(rng: Random, text: str, thought: str | None) -> Dialogue:
    request = rng.choice(_TEXTS["requests"]).format(text)
    return Dialogue((Message("user", request),), text, thought)


def _odd_word(rng: Random) -> str:
    draw = rng.random()
    if draw < 0.5:
        return made_up_word(rng).capitalize() if rng.random() < 0.4 else made_up_word(rng)
    if draw < 0.65:
        return str(rng.randint(0, 10 ** rng.randint(1, 5)))
    if draw < 0.75:
        return rng.choice(words("emoji"))
    if draw < 0.85:
        table = foreign()
        return rng.choice(table[rng.choice(tuple(table))])
    return rng.choice(words("names", "cities"))
