"""Sentences that hold a record, and the record as JSON.

Owns the record shapes with their JSON schemas. Values are drawn from word lists or, for names and
cities, made up, so that the model learns to copy and not to recognise. One combination in ten is
kept for the exam, by a hash of its values.
"""

import json
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from demo_model import words
from demo_model.chat import Dialogue, Message
from demo_model.copying import made_up_word

Record = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Source:
    """Where names and cities come from: lists, or None for made-up ones."""

    names: tuple[str, ...] | None
    cities: tuple[str, ...] | None

    def name(self, rng: Random) -> str:
        return rng.choice(self.names) if self.names else made_up_word(rng).capitalize()

    def city(self, rng: Random) -> str:
        return rng.choice(self.cities) if self.cities else made_up_word(rng).capitalize()


KNOWN: Final = Source(words.NAMES, words.CITIES)
UNSEEN: Final = Source(words.UNSEEN_NAMES, words.UNSEEN_CITIES)
MADE_UP: Final = Source(None, None)


@dataclass(frozen=True, slots=True)
class Shape:
    """A kind of record. The order of the schema's properties is the order of the record's keys."""

    name: str
    draw: Callable[[Random, Source], Record]
    sentences: tuple[str, ...]
    schema: dict[str, Any]


def _schema(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


_TEXT: Final = {"type": "string"}
_WHOLE: Final = {"type": "integer"}


def _full_name(rng: Random, source: Source) -> str:
    name = source.name(rng)
    if rng.random() < 0.3:
        name += " " + (rng.choice(words.SURNAMES) if source.names else source.name(rng))
    return name


def _person(rng: Random, source: Source) -> Record:
    return {
        "name": _full_name(rng, source),
        "age": rng.randint(3, 99),
        "city": source.city(rng),
    }


def _pet(rng: Random, source: Source) -> Record:
    return {
        "name": source.name(rng),
        "animal": rng.choice(words.ANIMALS),
        "age": rng.randint(1, 20),
        "owner": source.name(rng),
    }


def _order(rng: Random, source: Source) -> Record:
    return {
        "customer": source.name(rng),
        "item": rng.choice(words.ITEMS),
        "color": rng.choice(words.COLORS),
        "quantity": rng.randint(2, 99),
    }


def _event(rng: Random, source: Source) -> Record:
    return {
        "event": rng.choice(words.EVENTS),
        "day": rng.choice(words.DAYS),
        "hour": rng.randint(7, 22),
        "city": source.city(rng),
    }


def _book(rng: Random, source: Source) -> Record:
    title = f"The {rng.choice(words.TITLE_ADJECTIVES)} {rng.choice(words.TITLE_NOUNS)}"
    return {"title": title, "author": _full_name(rng, source), "year": rng.randint(1850, 2025)}


def _trip(rng: Random, source: Source) -> Record:
    return {
        "name": source.name(rng),
        "from": source.city(rng),
        "to": source.city(rng),
        "days": rng.randint(2, 30),
    }


def _likes(rng: Random, source: Source) -> Record:
    return {
        "name": source.name(rng),
        "city": source.city(rng),
        "likes": rng.sample(words.HOBBIES, 2),
    }


def _stock(rng: Random, source: Source) -> Record:
    return {
        "item": rng.choice(words.ITEMS),
        "city": source.city(rng),
        "price": rng.randint(2, 250),
        "in_stock": rng.random() < 0.5,
    }


SHAPES: Final = (
    Shape(
        "person",
        _person,
        (
            "{name} is {age} years old and lives in {city}.",
            "{name} from {city} is {age} years old.",
            "{name}, aged {age}, lives in {city}.",
            "My friend {name} lives in {city} and is {age} years old.",
            "In {city} there lives {name}, who is {age}.",
            "At the age of {age}, {name} moved to {city}.",
        ),
        _schema(name=_TEXT, age=_WHOLE, city=_TEXT),
    ),
    Shape(
        "pet",
        _pet,
        (
            "{owner} has a {animal} named {name} that is {age} years old.",
            "{name} is a {animal} of {age} years that belongs to {owner}.",
            "The {animal} of {owner} is called {name} and is {age} years old.",
            "{owner} owns {name}, a {animal} aged {age}.",
            "{name} the {animal} is {age} and lives with {owner}.",
        ),
        _schema(name=_TEXT, animal=_TEXT, age=_WHOLE, owner=_TEXT),
    ),
    Shape(
        "order",
        _order,
        (
            "{customer} ordered {quantity} {color} {item}.",
            "{quantity} {color} {item} were ordered by {customer}.",
            "Please send {quantity} {color} {item} to {customer}.",
            "{customer} would like to buy {quantity} {item} in {color}.",
            "An order came in from {customer}: {quantity} {item}, all {color}.",
        ),
        _schema(customer=_TEXT, item=_TEXT, color=_TEXT, quantity=_WHOLE),
    ),
    Shape(
        "event",
        _event,
        (
            "The {event} is on {day} at {hour}:00 in {city}.",
            "On {day} at {hour}:00 there is a {event} in {city}.",
            "There will be a {event} in {city} on {day} at {hour}:00.",
            "Come to the {event} in {city}, {day}, {hour}:00!",
            "{city}: {event} on {day}, it starts at {hour}:00.",
        ),
        _schema(
            event=_TEXT,
            day={"type": "string", "enum": list(words.DAYS)},
            hour={"type": "integer", "minimum": 0, "maximum": 23},
            city=_TEXT,
        ),
    ),
    Shape(
        "book",
        _book,
        (
            "{author} wrote {title} in {year}.",
            "{title} is a book by {author} from {year}.",
            "In {year}, {author} published {title}.",
            "The book {title} was written by {author} in {year}.",
            "I am reading {title} by {author}, published in {year}.",
        ),
        _schema(title=_TEXT, author=_TEXT, year=_WHOLE),
    ),
    Shape(
        "trip",
        _trip,
        (
            "{name} travels from {from} to {to} for {days} days.",
            "{name} leaves {from} and stays in {to} for {days} days.",
            "For {days} days, {name} goes from {from} to {to}.",
            "{name} is on a trip of {days} days from {from} to {to}.",
            "A trip from {from} to {to} takes {name} {days} days.",
        ),
        _schema(**{"name": _TEXT, "from": _TEXT, "to": _TEXT, "days": _WHOLE}),
    ),
    Shape(
        "likes",
        _likes,
        (
            "{name} from {city} likes {first} and {second}.",
            "{name} lives in {city} and loves {first} and {second}.",
            "In {city}, {name} enjoys {first} and {second}.",
            "{name} likes two things: {first} and {second}. Home is {city}.",
        ),
        _schema(
            name=_TEXT,
            city=_TEXT,
            likes={"type": "array", "items": _TEXT, "minItems": 1, "maxItems": 3},
        ),
    ),
    Shape(
        "stock",
        _stock,
        (
            "The shop in {city} sells {item} for {price} euros and {has} them in stock.",
            "In {city} the {item} cost {price} euros, and the shop {has} them in stock.",
            "{item} at {price} euros: the shop in {city} {has} them in stock.",
            "For {price} euros the shop in {city} sells {item}; it {has} them in stock.",
        ),
        _schema(item=_TEXT, city=_TEXT, price=_WHOLE, in_stock={"type": "boolean"}),
    ),
)
_INSTRUCTIONS: Final = (
    "Extract the {} record as JSON: {}",
    "Give me the {} record as JSON: {}",
    "Write the {} as JSON: {}",
    "Turn this into a {} record in JSON: {}",
    "Extract the {} as JSON.\n\n{}",
    "Read the sentence and write the {} record as JSON.\n{}",
    "Please extract the {} record in JSON from this text: {}",
    "JSON, {} record: {}",
)
_LAST_INSTRUCTIONS: Final = (
    "{1}\n\nExtract the {0} record as JSON.",
    "{1} Write the {0} record as JSON.",
    "{1}\nGive me the {0} as JSON.",
)
_KEY_INSTRUCTIONS: Final = (
    "Extract JSON with the keys {}: {}",
    "Write JSON with {} from this sentence: {}",
    "Give me JSON with the keys {}.\n\n{}",
)
_SYSTEMS: Final = (
    "You extract records.",
    "Answer in JSON.",
    "You are a helpful assistant.",
    "Write only JSON.",
)


def sentence(rng: Random, shape: Shape, record: Record) -> str:
    """The record, told in a sentence."""
    fields = dict(record)
    if "likes" in record:
        fields["first"], fields["second"] = record["likes"]
    if "in_stock" in record:
        fields["has"] = "has" if record["in_stock"] else "does not have"
    text = rng.choice(shape.sentences).format(**fields)
    return text[0].upper() + text[1:]


def as_json(record: Record) -> str:
    return json.dumps(record, ensure_ascii=False)


def is_for_exam(shape: Shape, record: Record) -> bool:
    """One combination of values in ten belongs to the exam; the order of draws does not matter."""
    text = shape.name + "/".join(str(value) for value in record.values())
    return zlib.crc32(text.encode()) % 10 == 0


def training(rng: Random) -> Dialogue:
    """A sentence with a combination of values that the exam does not ask for."""
    while True:
        shape = rng.choice(SHAPES)
        names = words.NAMES if rng.random() < 0.55 else None
        cities = words.CITIES if rng.random() < 0.55 else None
        record = shape.draw(rng, Source(names, cities))
        if not is_for_exam(shape, record):
            break
    text = sentence(rng, shape, record)
    if rng.random() < 0.15:
        request, record = _with_keys(rng, record, text)
        return _dialogue(rng, request, record, shape.name)
    return _dialogue(rng, _request(rng, shape, text), record, shape.name)


def exam(rng: Random, shape: Shape, source: Source) -> tuple[Dialogue, Record]:
    """A combination that training never shows."""
    while True:
        record = shape.draw(rng, source)
        if is_for_exam(shape, record):
            break
    request = _request(rng, shape, sentence(rng, shape, record))
    return Dialogue((Message("user", request),), as_json(record)), record


def exam_with_keys(rng: Random, shape: Shape, source: Source) -> tuple[Dialogue, Record]:
    """The same, with the keys listed in the prompt in any order."""
    while True:
        record = shape.draw(rng, source)
        if is_for_exam(shape, record):
            break
    request, record = _with_keys(rng, record, sentence(rng, shape, record))
    return Dialogue((Message("user", request),), as_json(record)), record


def catalogue() -> dict[str, Any]:
    """Each shape's schema, with a prompt and the answer to it: for tests and examples."""
    entries = {}
    for shape in SHAPES:
        dialogue, record = exam(Random(f"catalogue/{shape.name}"), shape, KNOWN)
        entries[shape.name] = {
            "schema": shape.schema,
            "prompt": dialogue.messages[-1].content,
            "answer": record,
        }
    return entries


def _with_keys(rng: Random, record: Record, text: str) -> tuple[str, Record]:
    keys = rng.sample(list(record), len(record))
    request = rng.choice(_KEY_INSTRUCTIONS).format(", ".join(keys), text)
    return request, {key: record[key] for key in keys}


def _request(rng: Random, shape: Shape, text: str) -> str:
    if rng.random() < 0.25:
        return rng.choice(_LAST_INSTRUCTIONS).format(shape.name, text)
    return rng.choice(_INSTRUCTIONS).format(shape.name, text)


def _dialogue(rng: Random, request: str, record: Record, name: str) -> Dialogue:
    messages = [Message("user", request)]
    if rng.random() < 0.1:
        messages.insert(0, Message("system", rng.choice(_SYSTEMS)))
    thought = f"I look for the {name} in the sentence." if rng.random() < 0.12 else None
    return Dialogue(tuple(messages), as_json(record), thought)
