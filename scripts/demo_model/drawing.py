"""Draws random values: words from the lists in ``texts/words.json``, numbers, and made-up words.

Owns how a description becomes a value, and which combinations are reserved for the exam. Lists
whose name starts with ``unseen`` are never used in training: the exam asks for names and cities
that the model has not seen.
"""

import json
import re
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Final, TypeVar

Values = dict[str, Any]
T = TypeVar("T")


TEXTS: Final = Path(__file__).parent / "texts"


def read(name: str) -> Any:
    """One of the files in ``texts``."""
    return json.loads((TEXTS / f"{name}.json").read_text(encoding="utf-8"))


_WORDS: Final[dict[str, Any]] = read("words")
_SYLLABLES: Final[dict[str, list[str]]] = read("copying")
FOREIGN: Final[Mapping[str, list[str]]] = _WORDS["languages"]


def words(*names: str) -> tuple[str, ...]:
    """The words of these lists, one list after the other."""
    return tuple(word for name in names for word in _WORDS[name])


def made_up_word(rng: Random) -> str:
    """A made-up word in lower case."""
    count = rng.choices((1, 2, 3, 4), (1, 5, 4, 1))[0]
    return "".join(
        rng.choice(_SYLLABLES["onsets"]) * (place > 0 or rng.random() < 0.8)
        + rng.choice(_SYLLABLES["vowels"])
        + rng.choice(_SYLLABLES["codas"])
        for place in range(count)
    )


@dataclass(frozen=True, slots=True)
class Source:
    """Where names and cities come from: lists, or ``None`` for made-up ones. A list is used in a
    ``share`` of all draws."""

    names: str | None
    cities: str | None
    share: float = 1.0

    def name(self, rng: Random) -> str:
        return self._one(rng, self.names)

    def city(self, rng: Random) -> str:
        return self._one(rng, self.cities)

    def full_name(self, rng: Random) -> str:
        name = self.name(rng)
        if rng.random() < 0.3:
            name += " " + (rng.choice(words("surnames")) if self.names else self.name(rng))
        return name

    def _one(self, rng: Random, words_of: str | None) -> str:
        if words_of is not None and (self.share == 1 or rng.random() < self.share):
            return rng.choice(words(words_of))
        return made_up_word(rng).capitalize()


def drawn(rng: Random, wanted: Any, source: Source) -> Any:
    """A value for a description: ``[low, high]``, an integer; ``true``, either truth value;
    ``{"sample": list}``, two words of a list; ``{"any": texts}``, one of several texts. In a text,
    ``{list}`` or ``{list|list}`` is a word; ``{name}``, ``{full_name}``, ``{city}`` are the
    source's."""

    def word(found: re.Match[str]) -> str:
        if found[1] in ("name", "full_name", "city"):
            own: str = getattr(source, found[1])(rng)
            return own
        return rng.choice(words(*found[1].split("|")))

    match wanted:
        case True:
            return rng.random() < 0.5
        case [low, high]:
            return rng.randint(low, high)
        case {"sample": name}:
            return rng.sample(words(name), 2)
        case {"any": texts}:
            return rng.choice([drawn(rng, text, source) for text in texts])
        case _:
            return re.sub(r"\{([a-z_|]+)\}", word, wanted)


def all_drawn(rng: Random, wanted: Mapping[str, Any], source: Source) -> Values:
    """A value for each key; a key of two words gets two values."""
    values: Values = {}
    for keys, description in wanted.items():
        value = drawn(rng, description, source)
        values |= dict(zip(keys.split(), value, strict=True)) if " " in keys else {keys: value}
    return values


def is_for_exam(text: str, values: Values | None = None) -> bool:
    """Whether only the exam may ask for a text or a combination of values, as for one in ten. The
    order of drawing does not matter."""
    whole = text + "/".join(str(value) for value in (values or {}).values())
    return zlib.crc32(whole.encode()) % 10 == 0


def of_side(for_exam: bool, draw: Callable[[], T], told: Callable[[T], tuple[Any, ...]]) -> T:
    """The first draw that is for the exam, or for training; ``told`` gives the arguments of
    ``is_for_exam``."""
    while True:
        found = draw()
        if is_for_exam(*told(found)) == for_exam:
            return found
