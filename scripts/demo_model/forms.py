"""Structured answers: records as JSON, and tool calls.

The shapes of the records and their sentences are in ``texts/records.json``; about half of the names
and cities are made up, so that the model learns to copy rather than recognise. Training's tools are
in ``texts/tools.json``; made-up tools teach the model to read the list in the prompt.
"""

import json
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from demo_model import knowledge
from demo_model.chat import Dialogue, Message, Tool, asked, at_times, tool_of
from demo_model.drawing import Source, Values, all_drawn, made_up_word, of_side, read, words

_RECORDS: Final[dict[str, Any]] = read("records")
_TOOLS: Final[dict[str, Any]] = read("tools")
KNOWN: Final = Source("names", "cities")
UNSEEN: Final = Source("unseen_names", "unseen_cities")
MADE_UP: Final = Source(None, None)
_SOURCE: Final = Source("names", "cities", share=0.75)  # for the arguments of tools


# ---- records -----------------------------------------------------------------------------------


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


SHAPES: Final = [Shape(**told) for told in _RECORDS["shapes"]]


def record(rng: Random) -> Dialogue:
    """A sentence with a combination of values that the exam does not ask for."""

    def draw() -> tuple[Shape, Values]:
        shape = rng.choice(SHAPES)
        names = "names" if rng.random() < 0.55 else None
        cities = "cities" if rng.random() < 0.55 else None
        return shape, all_drawn(rng, shape.draw, Source(names, cities))

    shape, values = of_side(False, draw, lambda found: (found[0].name, found[1]))
    text = _sentence(rng, shape, values)
    request, values = _requested(rng, shape, values, text, lists_keys=rng.random() < 0.15)
    system = rng.choice(_RECORDS["systems"]) if rng.random() < 0.1 else None
    thought = at_times(rng, 0.12, f"I look for the {shape.name} in the sentence.")
    return asked(request, _as_json(values), thought, system=system)


def record_exam(
    rng: Random, shape: Shape, source: Source, *, lists_keys: bool = False
) -> tuple[Dialogue, Values]:
    """A combination that training never shows; with ``lists_keys``, the prompt lists its keys in a
    random order, which the record must keep."""
    values = of_side(True, lambda: all_drawn(rng, shape.draw, source), lambda v: (shape.name, v))
    text = _sentence(rng, shape, values)
    request, values = _requested(rng, shape, values, text, lists_keys=lists_keys)
    return asked(request, _as_json(values)), values


def catalogue() -> dict[str, Any]:
    """Each shape's schema, with a prompt and its answer, for tests and examples."""
    entries = {}
    for shape in SHAPES:
        dialogue, values = record_exam(Random(f"catalogue/{shape.name}"), shape, KNOWN)
        prompt = dialogue.messages[-1].content
        entries[shape.name] = {"schema": shape.schema, "prompt": prompt, "answer": values}
    return entries


def _sentence(rng: Random, shape: Shape, values: Values) -> str:
    """A sentence that contains the record's values."""
    fields = dict(values)
    if "likes" in values:
        fields["first"], fields["second"] = values["likes"]
    if "in_stock" in values:
        fields["has"] = "has" if values["in_stock"] else "does not have"
    text = rng.choice(shape.sentences).format(**fields)
    return text[0].upper() + text[1:]


def _requested(
    rng: Random, shape: Shape, values: Values, text: str, *, lists_keys: bool
) -> tuple[str, Values]:
    if lists_keys:
        keys = rng.sample(list(values), len(values))
        request: str = rng.choice(_RECORDS["key_instructions"]).format(", ".join(keys), text)
        return request, {key: values[key] for key in keys}
    kind = "last_instructions" if rng.random() < 0.25 else "instructions"
    return rng.choice(_RECORDS[kind]).format(shape.name, text), values


def _as_json(value: Values) -> str:
    return json.dumps(value, ensure_ascii=False)


# ---- tool calls --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Skill:
    """A tool, and the requests that need it."""

    name: str
    descriptions: list[str]
    parameters: dict[str, str]
    draw: dict[str, Any]
    requests: list[str]

    def tool(self, rng: Random) -> Tool:
        return tool_of(self.name, rng.choice(self.descriptions), self.parameters)


SKILLS: Final = [Skill(**told) for told in _TOOLS["skills"]]


def tool_call(rng: Random) -> Dialogue:
    """A request with a list of tools; sometimes none is needed, or one has already answered."""
    draw = rng.random()
    if draw < 0.64:
        return _call(rng)
    if draw < 0.84:
        return _made_up(rng)
    return _after_result(rng) if draw < 0.92 else _without_call(rng)


def _call(rng: Random) -> Dialogue:
    def draw() -> tuple[Skill, Values]:
        skill = rng.choice(SKILLS)
        return skill, all_drawn(rng, skill.draw, _SOURCE)

    skill, arguments = of_side(False, draw, lambda found: (found[0].name, found[1]))
    request = rng.choice(skill.requests).format(**arguments)
    if rng.random() < 0.12:
        request = rng.choice(knowledge.OPENINGS) + request
    system = rng.choice(knowledge.PLAIN_SYSTEMS) if rng.random() < 0.2 else None
    thought = at_times(rng, 0.12, f"The tool {skill.name} can do this.")
    messages = asked(request, "", system=system).messages
    return Dialogue(messages, _call_text(skill.name, arguments), thought, _tools(rng, skill))


def tool_call_exam(rng: Random, skill: Skill) -> tuple[Dialogue, Values]:
    """A combination of arguments that training never shows."""
    arguments = of_side(
        True, lambda: all_drawn(rng, skill.draw, _SOURCE), lambda v: (skill.name, v)
    )
    request = rng.choice(skill.requests).format(**arguments)
    answer = _call_text(skill.name, arguments)
    return Dialogue([Message("user", request)], answer, None, _tools(rng, skill)), arguments


def _call_text(name: str, arguments: Values) -> str:
    return f"<tool_call>{_as_json({'name': name, 'arguments': arguments})}</tool_call>"


def _tools(rng: Random, skill: Skill) -> list[Tool]:
    count = rng.choices((0, 1, 2, 3), (3, 3, 2, 1))[0]
    others = [other for other in rng.sample(SKILLS, count + 1) if other is not skill][:count]
    chosen = [*others, skill]
    rng.shuffle(chosen)
    return [one.tool(rng) for one in chosen]


def _made_up(rng: Random) -> Dialogue:
    """A tool that exists only in this prompt: its name and keys must be copied from the list."""
    told = _TOOLS["made_up"]
    tools: list[tuple[str, str, dict[str, str]]] = []
    for _ in range(rng.randint(1, 3)):
        noun = rng.choice(words("treasures", "creatures")) if rng.random() < 0.5 else ""
        keys = rng.sample(_TOOLS["generic_keys"], rng.randint(1, 2))
        verb = rng.choice(words("verbs")) if rng.random() < 0.8 else made_up_word(rng)
        noun = noun or made_up_word(rng)
        description = rng.choice(told["descriptions"])
        description = description.format(verb=verb, Verb=verb.capitalize(), noun=noun)
        kinds = {key: "integer" if key in told["numbers"] else "string" for key in keys}
        tools.append((f"{verb}_{noun}", description, kinds))
    name, _, kinds = rng.choice(tools)
    wanted = {key: told["numbers"].get(key, told["draw"].get(key, "{name}")) for key in kinds}
    arguments = all_drawn(rng, wanted, _SOURCE)
    verb, noun = name.split("_")
    details = " and ".join(f"{key} {value}" for key, value in arguments.items())
    request = rng.choice(told["requests"])
    request = request.format(verb=verb, Verb=verb.capitalize(), noun=noun, details=details)
    thought = at_times(rng, 0.1, f"The tool {name} can do this.")
    answer = _call_text(name, arguments)
    return Dialogue([Message("user", request)], answer, thought, [tool_of(*one) for one in tools])


def _after_result(rng: Random) -> Dialogue:
    """The tool has answered, and the assistant reports the result."""
    city = _SOURCE.city(rng)
    number = 0 if rng.random() < 0.6 else 1
    skill, told = SKILLS[number], _TOOLS["results"][number]
    values = {"city": city, **all_drawn(rng, told["draw"], _SOURCE)}
    result, answer = (told[name].format(**values) for name in ("result", "answer"))
    if rng.random() < 0.3:
        value = rng.randint(1, 99)
        result, answer = str(value), f"The answer is {value}."
    request = rng.choice(skill.requests).format(city=city)
    call = Message("assistant", _call_text(skill.name, {"city": city}))
    messages = [Message("user", request), call, Message("tool", result)]
    thought = at_times(rng, 0.15, "The tool has answered.")
    return Dialogue(messages, answer, thought, _tools(rng, skill))


def _without_call(rng: Random) -> Dialogue:
    """Tools are listed, but the question needs none."""
    others = [one for one in SKILLS if one.name not in ("add", "translate")]
    tools = [one.tool(rng) for one in rng.sample(others, rng.randint(1, 3))]
    if rng.random() < 0.2:
        greeting = Message("user", rng.choice(_TOOLS["greetings"]))
        return Dialogue([greeting], rng.choice(_TOOLS["nothing"]), None, tools)
    fact = knowledge.fact(rng)
    return Dialogue(fact.messages, fact.answer, fact.thought, tools)
