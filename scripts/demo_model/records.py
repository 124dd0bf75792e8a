"""Sentences that hold a record, and the record as JSON.

The shapes of the records, their sentences and the requests are in `texts/records.json`. Names and
cities are made up half of the time, so that the model learns to copy and not to recognise.
"""

import json
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from demo_model.chat import Dialogue, Message
from demo_model.drawing import Source, Values, all_drawn, is_for_exam, read

_TEXTS: Final[dict[str, Any]] = read("records")
KNOWN: Final = Source("names", "cities")
UNSEEN: Final = Source("unseen_names", "unseen_cities")
MADE_UP: Final = Source(None, None)


@dataclass(frozen=True, slots=True)
class Shape:
    """A kind of record. The order of its properties is the order of the record's keys."""

    name: str
    draw: dict[str, Any]
    properties: dict[str, Any]
    sentences: list[str]

    @property
    def schema(self) -> dict[str, Any]:
        return {
            "type": "object",
            "properties": self.properties,
            "required": list(self.properties),
            "additionalProperties": False,
        }


SHAPES: Final = [Shape(**told) for told in _TEXTS["shapes"]]


def sentence(rng: Random, shape: Shape, record: Values) -> str:
    """The record, told in a sentence."""
    fields = dict(record)
    if "likes" in record:
        fields["first"], fields["second"] = record["likes"]
    if "in_stock" in record:
        fields["has"] = "has" if record["in_stock"] else "does not have"
    text = rng.choice(shape.sentences).format(**fields)
    return text[0].upper() + text[1:]


def as_json(record: Values) -> str:
    return json.dumps(record, ensure_ascii=False)


def training(rng: Random) -> Dialogue:
    """A sentence with a combination of values that the exam does not ask for."""
    while True:
        shape = rng.choice(SHAPES)
        names = "names" if rng.random() < 0.55 else None
        cities = "cities" if rng.random() < 0.55 else None
        record = all_drawn(rng, shape.draw, Source(names, cities))
        if not is_for_exam(shape.name, record):
            break
    text = sentence(rng, shape, record)
    if rng.random() < 0.15:
        request, record = _with_keys(rng, record, text)
    else:
        request = _request(rng, shape, text)
    messages = [Message("user", request)]
    if rng.random() < 0.1:
        messages.insert(0, Message("system", rng.choice(_TEXTS["systems"])))
    thought = f"I look for the {shape.name} in the sentence." if rng.random() < 0.12 else None
    return Dialogue(tuple(messages), as_json(record), thought)


def exam(
    rng: Random, shape: Shape, source: Source, *, lists_keys: bool = False
) -> tuple[Dialogue, Values]:
    """A combination that training never shows; with ``lists_keys``, its keys are in the prompt in
    any order, and the record is to have that one."""
    while True:
        record = all_drawn(rng, shape.draw, source)
        if is_for_exam(shape.name, record):
            break
    text = sentence(rng, shape, record)
    if lists_keys:
        request, record = _with_keys(rng, record, text)
    else:
        request = _request(rng, shape, text)
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


def _with_keys(rng: Random, record: Values, text: str) -> tuple[str, Values]:
    keys = rng.sample(list(record), len(record))
    request = rng.choice(_TEXTS["key_instructions"]).format(", ".join(keys), text)
    return request, {key: record[key] for key in keys}


def _request(rng: Random, shape: Shape, text: str) -> str:
    kind = "last_instructions" if rng.random() < 0.25 else "instructions"
    request: str = rng.choice(_TEXTS[kind]).format(shape.name, text)
    return request
