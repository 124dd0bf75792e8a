"""Short stories, as raw text and as answers.

Owns the story grammar. A story has a hero, a place and a thing that is lost, found or wanted, and
keeps them to its end.
"""

from random import Random
from typing import Final

from demo_model import words
from demo_model.chat import Dialogue, Message

_OPENINGS: Final = (
    "Once upon a time there was a {adj} {creature} named {hero}.",
    "Once upon a time, in a {adj2} {place}, there lived a {creature} named {hero}.",
    "Once upon a time a {adj} {creature} named {hero} lived near the {place}.",
    "Long ago, a {adj} {creature} named {hero} lived in a {adj2} {place}.",
    "One day a {adj} {creature} named {hero} walked through the {place}.",
    "In a {adj2} {place} there lived a {adj} {creature}. Its name was {hero}.",
    "There was once a {creature} named {hero} who loved the {place}.",
)
_MIDDLES: Final = (
    "Every morning {hero} looked for something new.",
    "{hero} had a {adj2} friend, the {creature2} {hero2}.",
    "{hero} liked to play in the {weather}.",
    "All the others said that {hero} was very {adj}.",
    "{hero} wanted to find a {adj2} {thing}.",
)
_PROBLEMS: Final = (
    "One day {hero} lost a {thing} in the {place2}.",
    "One day the {weather} came and the {thing} was gone.",
    "Then {hero} found an old {thing} near the {place2}.",
    "One evening {hero} heard a strange sound from the {place2}.",
    "One morning {hero2} the {creature2} came and asked for help.",
    "But the way to the {place2} was long and dark.",
)
_SEARCHES: Final = (
    '"Where is the {thing}?" asked {hero}.',
    '"I will help you," said {hero2} the {creature2}.',
    '"Do not be afraid," said {hero2}.',
    '"Come with me to the {place2}," said {hero2}.',
    "{hero} looked under the stones and behind the trees.",
    "{hero} and {hero2} walked to the {place2} in the {weather}.",
    "They looked for the {thing} all day long.",
    "The {weather} was strong, but {hero} did not stop.",
)
_FINDS: Final = (
    "At last they found the {thing} in the {place2}.",
    "There, under a big tree, was the {thing}.",
    "Then {hero2} saw the {thing} and laughed.",
    "In the end {hero} gave the {thing} to {hero2}.",
    "And there it was, the {thing}, as bright as the moon.",
)
_ENDINGS: Final = (
    "{hero} was very happy and went home.",
    "From that day on, {hero} and {hero2} were best friends.",
    "They went home together and drank hot tea. 😊",
    "That night {hero} slept well and dreamed of the {place}. 🌙",
    "And they lived happily ever after.",
    "{hero} never forgot that day. ⭐",
    "Everybody in the {place} was glad.",
)
_REQUESTS: Final = (
    "Tell me a story about a {creature}.",
    "Tell me a short story about a {creature} named {hero}.",
    "Write a story about a {creature}.",
    "I want to hear a story about a {creature} and a {thing}.",
    "Please tell a story about a {adj} {creature}.",
    "Can you write a short story about a {creature}?",
    "A story about {hero} the {creature}, please.",
    "Write a short story about a {creature} in a {place}.",
)
_ANY_REQUESTS: Final = ("Tell me a story.", "Write a short story.", "Please tell me a story.")


def cast(rng: Random) -> dict[str, str]:
    """The people, places and things of one story."""
    hero, hero2 = rng.sample(words.HEROES, 2)
    creature, creature2 = rng.sample(words.CREATURES, 2)
    place, place2 = rng.sample(words.PLACES, 2)
    adj, adj2 = rng.sample(words.STORY_ADJECTIVES, 2)
    return {
        "hero": hero,
        "hero2": hero2,
        "creature": creature,
        "creature2": creature2,
        "place": place,
        "place2": place2,
        "adj": adj,
        "adj2": adj2,
        "thing": rng.choice(words.TREASURES),
        "weather": rng.choice(words.WEATHERS),
    }


def sentences(rng: Random, roles: dict[str, str]) -> list[str]:
    """A story, sentence by sentence."""
    plan = [
        rng.choice(_OPENINGS),
        *rng.sample(_MIDDLES, rng.randint(1, 2)),
        rng.choice(_PROBLEMS),
        *rng.sample(_SEARCHES, rng.randint(1, 3)),
        rng.choice(_FINDS),
        *rng.sample(_ENDINGS, rng.randint(1, 2)),
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
        template = rng.choice(_REQUESTS) if rng.random() < 0.8 else rng.choice(_ANY_REQUESTS)
        request = _article(template.format(**roles))
        answer, thought = " ".join(lines), "The user wants a story."
    return Dialogue((Message("user", request),), answer, thought if rng.random() < 0.15 else None)


def _article(line: str) -> str:
    """`a owl` becomes `an owl`."""
    for vowel in "aeiou":
        line = line.replace(f" a {vowel}", f" an {vowel}")
    return line
