"""Values that are drawn at random: words of the lists in ``texts/words.json``, numbers, and words
that are made up.

Owns how a description becomes a value, and which combinations are kept for the exam. Lists whose
name starts with ``unseen`` never reach the training side: the exam asks for names and cities that
the model has not met.
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


def read(name: str) -> Any:
    """One of the files in ``texts``."""
    path = Path(__file__).parent / "texts" / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8"))


_WORDS: Final[dict[str, Any]] = read("words")
_SYLLABLES: Final[dict[str, list[str]]] = read("copying")
FOREIGN: Final[Mapping[str, list[str]]] = _WORDS["languages"]


def words(*names: str) -> tuple[str, ...]:
    """The words of these lists, one list after the other."""
    return tuple(word for name in names for word in _WORDS[name])


def made_up_word(rng: Random) -> str:
    """A word in lower case that need not exist."""
    count = rng.choices((1, 2, 3, 4), (1, 5, 4, 1))[0]
    return "".join(
        rng.choice(_SYLLABLES["onsets"]) * (place > 0 or rng.random() < 0.8)
        + rng.choice(_SYLLABLES["vowels"])
        + rng.choice(_SYLLABLES["codas"])
        for place in range(count)
    )


@dataclass(frozen=True, slots=True)
class Source:
    """Where names and cities come from: lists, or ``None`` for made-up ones. With a ``share`` below
    1, a list is used that often."""

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
    """A value as it is described: ``[low, high]``, a whole number; ``true``, either truth value;
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
    """A value for each key; a key of two words takes two."""
    values: Values = {}
    for keys, description in wanted.items():
        value = drawn(rng, description, source)
        values |= dict(zip(keys.split(), value, strict=True)) if " " in keys else {keys: value}
    return values


def is_for_exam(text: str, values: Values | None = None) -> bool:
    """Whether the exam alone may ask for it: so it is with one text, or combination of values, in
    ten. The order in which they are drawn does not matter."""
    whole = text + "/".join(str(value) for value in (values or {}).values())
    return zlib.crc32(whole.encode()) % 10 == 0


def of_side(for_exam: bool, draw: Callable[[], T], told: Callable[[T], tuple[Any, ...]]) -> T:
    """The first that is drawn for the exam, or for training; ``told``: by which that is known."""
    while True:
        found = draw()
        if is_for_exam(*told(found)) == for_exam:
            return found
