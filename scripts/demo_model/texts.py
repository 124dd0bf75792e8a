"""Running text: short stories, and passages to copy.

Owns the order of a story's sentences, which are in ``texts/stories.json``: a story has a hero, a
place and a thing that is lost, found or wanted, and keeps them to its end. The texts to copy are
passages of stories, lists of random words, made-up words, and the random tokens that teach copying.
"""

from random import Random
from typing import Any, Final

from demo_model.chat import Dialogue, asked, at_times
from demo_model.drawing import FOREIGN, made_up_word, of_side, read, words

_STORIES: Final[dict[str, Any]] = read("stories")
_REQUESTS: Final[list[str]] = read("copying")["requests"]
_POOL: Final = tuple(
    dict.fromkeys(
        (
            *words("items", "colors", "animals", "hobbies", "places", "treasures", "weathers"),
            *words("story_adjectives", "creatures", "events", "rooms", "elements", "opposites"),
            *("the", "a", "and", "of", "in", "to", "was", "is", "with", "on"),
        )
    )
)


# ---- stories -----------------------------------------------------------------------------------


def cast(rng: Random) -> dict[str, str]:
    """The people, places and things of one story."""
    roles: dict[str, str] = {}
    for role, name in (
        ("hero", "heroes"),
        ("creature", "creatures"),
        ("place", "places"),
        ("adj", "story_adjectives"),
    ):
        roles[role], roles[f"{role}2"] = rng.sample(words(name), 2)
    roles["thing"] = rng.choice(words("treasures"))
    roles["weather"] = rng.choice(words("weathers"))
    return roles


def sentences(rng: Random, roles: dict[str, str]) -> list[str]:
    """A story, sentence by sentence."""
    plan = [
        rng.choice(_STORIES["openings"]),
        *rng.sample(_STORIES["middles"], rng.randint(1, 2)),
        rng.choice(_STORIES["problems"]),
        *rng.sample(_STORIES["searches"], rng.randint(1, 3)),
        rng.choice(_STORIES["finds"]),
        *rng.sample(_STORIES["endings"], rng.randint(1, 2)),
    ]
    return [_article(line.format(**roles)) for line in plan]


def raw_story(rng: Random) -> str:
    """A story as plain text, sometimes in two paragraphs."""
    lines = sentences(rng, cast(rng))
    if rng.random() < 0.25:
        cut = rng.randint(2, len(lines) - 2)
        return " ".join(lines[:cut]) + "\n\n" + " ".join(lines[cut:])
    return " ".join(lines)


def story(rng: Random) -> Dialogue:
    """A request for a story, or for the rest of one."""
    roles = cast(rng)
    lines = sentences(rng, roles)
    if rng.random() < 0.4:
        cut = rng.randint(1, 2)
        request = rng.choice(("Continue this story: ", "Go on: ", "Continue: "))
        request += " ".join(lines[:cut])
        answer, thought = " ".join(lines[cut:]), "I go on with the story."
    else:
        known = "requests" if rng.random() < 0.8 else "any_requests"
        request = _article(rng.choice(_STORIES[known]).format(**roles))
        answer, thought = " ".join(lines), "The user wants a story."
    return asked(request, answer, at_times(rng, 0.15, thought))


def _article(line: str) -> str:
    """``a owl`` becomes ``an owl``."""
    for vowel in "aeiou":
        line = line.replace(f" a {vowel}", f" an {vowel}")
    return line


# ---- copies ------------------------------------------------------------------------------------


def copy(rng: Random) -> Dialogue:
    """A passage, a list of words or made-up words to repeat, never one of the exam's."""
    draw = rng.random()

    def text() -> str:
        if draw < 0.5:
            return _passage(rng, rng.randint(3, 28))
        if draw < 0.65:
            tokens = _passage(rng, rng.randint(4, 24)).split(" ")
            rng.shuffle(tokens)
            return " ".join(tokens)
        if draw < 0.85:
            pool = rng.sample(_POOL, rng.randint(4, 40))
            return " ".join(rng.choice(pool) for _ in range(rng.randint(2, 24)))
        return " ".join(_odd_word(rng) for _ in range(rng.randint(1, 10)))

    found = of_side(False, text, lambda text: (text,))
    thought = at_times(rng, 0.1, "I copy the text.")
    return asked(rng.choice(_REQUESTS).format(found), found, thought)


def copy_exam(rng: Random) -> Dialogue:
    """Twenty words of a story that training never shows as one passage."""
    found = of_side(True, lambda: _passage(rng, 20), lambda text: (text,))
    return asked(rng.choice(_REQUESTS).format(found), found)


def random_tokens(rng: Random, vocabulary: range, longest: int) -> list[int]:
    """Random tokens to repeat, from the whole vocabulary or from a small pool."""
    length = rng.randint(2, longest)
    if rng.random() < 0.5:
        return [rng.choice(vocabulary) for _ in range(length)]
    pool = [rng.choice(vocabulary) for _ in range(max(3, int(length * rng.uniform(0.3, 1.2))))]
    return [rng.choice(pool) for _ in range(length)]


def _passage(rng: Random, count: int) -> str:
    """``count`` words of a story."""
    while True:
        lines = sentences(rng, cast(rng))
        tokens = " ".join(lines[rng.randrange(len(lines) - 2) :]).split(" ")
        if len(tokens) >= count:
            return " ".join(tokens[:count])


def _odd_word(rng: Random) -> str:
    draw = rng.random()
    if draw < 0.5:
        return made_up_word(rng).capitalize() if rng.random() < 0.4 else made_up_word(rng)
    if draw < 0.65:
        return str(rng.randint(0, 10 ** rng.randint(1, 5)))
    if draw < 0.75:
        return rng.choice(words("emoji"))
    if draw < 0.85:
        return rng.choice(FOREIGN[rng.choice(tuple(FOREIGN))])
    return rng.choice(words("names", "cities"))
