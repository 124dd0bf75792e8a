"""Short stories, as raw text and as answers.

Owns the order of a story's sentences, which are in `texts/stories.json`. A story has a hero, a
place and a thing that is lost, found or wanted, and keeps them to its end.
"""

from random import Random
from typing import Any, Final

from demo_model.chat import Dialogue, Message
from demo_model.drawing import read, words

_TEXTS: Final[dict[str, Any]] = read("stories")


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
        rng.choice(_TEXTS["openings"]),
        *rng.sample(_TEXTS["middles"], rng.randint(1, 2)),
        rng.choice(_TEXTS["problems"]),
        *rng.sample(_TEXTS["searches"], rng.randint(1, 3)),
        rng.choice(_TEXTS["finds"]),
        *rng.sample(_TEXTS["endings"], rng.randint(1, 2)),
    ]
    return [_article(line.format(**roles)) for line in plan]


def raw(rng: Random) -> str:
    """A story as plain text, at times in paragraphs."""
    lines = sentences(rng, cast(rng))
    if rng.random() < 0.25:
        cut = rng.randint(2, len(lines) - 2)
        return " ".join(lines[:cut]) + "\n\n" + " ".join(lines[cut:])
    return " ".join(lines)


def training(rng: Random) -> Dialogue:
    """A story that is asked for, or the rest of one that was begun."""
    roles = cast(rng)
    lines = sentences(rng, roles)
    if rng.random() < 0.4:
        cut = rng.randint(1, 2)
        request = rng.choice(("Continue this story: ", "Go on: ", "Continue: "))
        request += " ".join(lines[:cut])
        answer, thought = " ".join(lines[cut:]), "I go on with the story."
    else:
        known = "requests" if rng.random() < 0.8 else "any_requests"
        request = _article(rng.choice(_TEXTS[known]).format(**roles))
        answer, thought = " ".join(lines), "The user wants a story."
    return Dialogue((Message("user", request),), answer, thought if rng.random() < 0.15 else None)


def _article(line: str) -> str:
    """`a owl` becomes `an owl`."""
    for vowel in "aeiou":
        line = line.replace(f" a {vowel}", f" an {vowel}")
    return line
