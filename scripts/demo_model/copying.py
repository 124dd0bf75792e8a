"""Passages to copy, and the random strings that teach copying.

Owns what is copied: passages of the stories' kind, lists of random words, and made-up words. A
passage of the exam never occurs in training: it is kept out by a hash of its text.
"""

import zlib
from random import Random
from typing import Final

from demo_model import stories, words
from demo_model.chat import Dialogue, Message

_REQUESTS: Final = (
    "Repeat this:\n{}",
    "Copy this text:\n{}",
    "Repeat: {}",
    "Copy: {}",
    "Say this again: {}",
    "Please repeat this text:\n{}",
    "Write this once more: {}",
    "Repeat after me: {}",
    "Copy the passage.\n\n{}",
    "{}\n\nRepeat the text above.",
)
_POOL: Final = tuple(
    dict.fromkeys(
        word
        for group in (
            words.ITEMS,
            words.COLORS,
            words.ANIMALS,
            words.HOBBIES,
            words.PLACES,
            words.TREASURES,
            words.WEATHERS,
            words.STORY_ADJECTIVES,
            words.CREATURES,
            words.EVENTS,
            words.ROOMS,
            tuple(words.ELEMENTS),
            tuple(a for pair in words.OPPOSITES for a in pair),
            ("the", "a", "and", "of", "in", "to", "was", "is", "with", "on"),
        )
        for word in group
    )
)
_ONSETS: Final = words.word_list(
    """
    b br c ch cr d dr f fl g gl gr h j k kl l m n p pl pr qu r s sch sh sk st str t th tr v w x
    y z
    """
)
_VOWELS: Final = words.word_list(
    """
    a a a e e e i i o o u u ai au ea ee ei ie io oo ou y á é í ó ö ü
    """
)
_CODAS: Final = (
    words.word_list(
        """
    ck d ff g l ll ld lt m n nd ng nn nt p r rd rk rn rt s ss st t th x z
    """
    )
    + ("",) * 12
)


def made_up_word(rng: Random) -> str:
    """A word in lower case that need not exist."""
    count = rng.choices((1, 2, 3, 4), (1, 5, 4, 1))[0]
    return "".join(
        rng.choice(_ONSETS) * (place > 0 or rng.random() < 0.8)
        + rng.choice(_VOWELS)
        + rng.choice(_CODAS)
        for place in range(count)
    )


def is_for_exam(text: str) -> bool:
    """One passage in ten belongs to the exam."""
    return zlib.crc32(text.encode()) % 10 == 0


def passage(rng: Random, count: int) -> str:
    """`count` words of the stories' kind."""
    while True:
        lines = stories.sentences(rng, stories.cast(rng))
        tokens = " ".join(lines[rng.randrange(len(lines) - 2) :]).split(" ")
        if len(tokens) >= count:
            return " ".join(tokens[:count])


def training(rng: Random) -> Dialogue:
    """A passage, a list of words or some made-up words to repeat."""
    draw = rng.random()
    while True:
        if draw < 0.5:
            text = passage(rng, rng.randint(3, 28))
        elif draw < 0.65:
            text = _jumbled(rng)
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
    return Dialogue((Message("user", rng.choice(_REQUESTS).format(text)),), text, thought)


def _jumbled(rng: Random) -> str:
    """Words of stories in any order."""
    tokens = passage(rng, rng.randint(4, 24)).split(" ")
    rng.shuffle(tokens)
    return " ".join(tokens)


def _odd_word(rng: Random) -> str:
    draw = rng.random()
    if draw < 0.5:
        return made_up_word(rng).capitalize() if rng.random() < 0.4 else made_up_word(rng)
    if draw < 0.65:
        return str(rng.randint(0, 10 ** rng.randint(1, 5)))
    if draw < 0.75:
        return rng.choice(tuple(words.EMOJI.values()))
    if draw < 0.85:
        table = words.LANGUAGES[rng.choice(tuple(words.LANGUAGES))]
        return rng.choice(tuple(table.values()))
    return rng.choice(words.NAMES + words.CITIES)
