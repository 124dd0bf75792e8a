"""Tool calls, and answers from what a tool gave back.

The tools that training shows and the requests for them are in `texts/tools.json`; made-up tools
teach to read the list in the prompt.
"""

import json
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from demo_model import facts
from demo_model.chat import Dialogue, Message, Tool
from demo_model.drawing import (
    Source,
    Values,
    all_drawn,
    drawn,
    is_for_exam,
    made_up_word,
    read,
    words,
)

_TEXTS: Final[dict[str, Any]] = read("tools")
_SOURCE: Final = Source("names", "cities", share=0.75)


@dataclass(frozen=True, slots=True)
class Skill:
    """A tool with the ways to ask for it."""

    name: str
    descriptions: list[str]
    parameters: dict[str, str]
    draw: dict[str, Any]
    requests: list[str]

    def tool(self, description: str) -> Tool:
        return Tool(self.name, description, tuple(self.parameters.items()))


SKILLS: Final = [Skill(**told) for told in _TEXTS["skills"]]


def call_text(name: str, arguments: Values) -> str:
    call = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>{call}</tool_call>"


def training(rng: Random) -> Dialogue:
    """A request with a list of tools; at times no tool is needed, or one has already answered."""
    draw = rng.random()
    if draw < 0.64:
        while True:
            skill = rng.choice(SKILLS)
            arguments = all_drawn(rng, skill.draw, _SOURCE)
            if not is_for_exam(skill.name, arguments):
                break
        return _call(rng, skill, arguments, training_side=True)
    if draw < 0.84:
        return _made_up(rng)
    if draw < 0.92:
        return _after_result(rng)
    return _without_call(rng)


def exam(rng: Random, skill: Skill) -> tuple[Dialogue, Values]:
    """A combination of arguments that training never shows."""
    while True:
        arguments = all_drawn(rng, skill.draw, _SOURCE)
        if is_for_exam(skill.name, arguments):
            return _call(rng, skill, arguments, training_side=False), arguments


def _call(rng: Random, skill: Skill, arguments: Values, *, training_side: bool) -> Dialogue:
    request = rng.choice(skill.requests).format(**arguments)
    messages = [Message("user", request)]
    thought = None
    if training_side:
        if rng.random() < 0.12:
            request = rng.choice(facts.OPENINGS) + request
            messages = [Message("user", request)]
        if rng.random() < 0.2:
            messages.insert(0, Message("system", rng.choice(facts.PLAIN_SYSTEMS)))
        if rng.random() < 0.12:
            thought = f"The tool {skill.name} can do this."
    answer = call_text(skill.name, arguments)
    return Dialogue(tuple(messages), answer, thought, _tools(rng, skill))


def _tools(rng: Random, skill: Skill) -> tuple[Tool, ...]:
    count = rng.choices((0, 1, 2, 3), (3, 3, 2, 1))[0]
    others = [other for other in rng.sample(SKILLS, count + 1) if other is not skill][:count]
    chosen = [*others, skill]
    rng.shuffle(chosen)
    return tuple(one.tool(rng.choice(one.descriptions)) for one in chosen)


def _made_up(rng: Random) -> Dialogue:
    """A tool that exists in this prompt only: its name and keys must be copied from the list."""
    tools: list[Tool] = []
    for _ in range(rng.randint(1, 3)):
        noun = rng.choice(words("treasures", "creatures")) if rng.random() < 0.5 else ""
        keys = rng.sample(_TEXTS["generic_keys"], rng.randint(1, 2))
        kinds = tuple((key, "integer" if key in ("size", "price") else "string") for key in keys)
        verb = rng.choice(words("verbs")) if rng.random() < 0.8 else made_up_word(rng)
        noun = noun or made_up_word(rng)
        description = rng.choice((f"{verb.capitalize()} a {noun}", "", f"Can {verb} a {noun}"))
        tools.append(Tool(f"{verb}_{noun}", description, kinds))
    tool = rng.choice(tools)
    texts = {"color": "{colors}", "city": "{city}", "day": "{days}", "room": "{rooms}"}
    wanted = {
        key: [1, 200] if kind == "integer" else texts.get(key, "{name}")
        for key, kind in tool.parameters
    }
    arguments = all_drawn(rng, wanted, _SOURCE)
    verb, noun = tool.name.split("_")
    details = " and ".join(f"{key} {value}" for key, value in arguments.items())
    request = rng.choice(
        (f"Please {verb} a {noun} with {details}.", f"{verb.capitalize()} the {noun}: {details}")
    )
    thought = f"The tool {tool.name} can do this." if rng.random() < 0.1 else None
    answer = call_text(tool.name, arguments)
    return Dialogue((Message("user", request),), answer, thought, tuple(tools))


def _after_result(rng: Random) -> Dialogue:
    """The tool has answered; the assistant tells it."""
    city = _SOURCE.city(rng)
    if rng.random() < 0.6:
        skill = SKILLS[0]
        degrees = rng.randint(-9, 39)
        sky = drawn(rng, "{weathers}", _SOURCE)
        result = json.dumps({"temperature": degrees, "sky": sky})
        answer = f"It is {degrees} degrees in {city}, with {sky}."
    else:
        skill = SKILLS[1]
        clock = f"{rng.randint(0, 23)}:{rng.randint(0, 59):02d}"
        result = json.dumps({"time": clock})
        answer = f"It is {clock} in {city}."
    if rng.random() < 0.3:
        value = rng.randint(1, 99)
        result, answer = str(value), f"The answer is {value}."
    request = rng.choice(skill.requests).format(city=city)
    messages = (
        Message("user", request),
        Message("assistant", call_text(skill.name, {"city": city})),
        Message("tool", result),
    )
    thought = "The tool has answered." if rng.random() < 0.15 else None
    return Dialogue(messages, answer, thought, _tools(rng, skill))


def _without_call(rng: Random) -> Dialogue:
    """Tools are listed, but the question needs none."""
    others = [one for one in SKILLS if one.name not in ("add", "translate")]
    tools = tuple(
        one.tool(rng.choice(one.descriptions)) for one in rng.sample(others, rng.randint(1, 3))
    )
    if rng.random() < 0.2:
        greeting = rng.choice(("Hello!", "Hi!", "Good morning!"))
        return Dialogue((Message("user", greeting),), rng.choice(_TEXTS["nothing"]), None, tools)
    fact = facts.training(rng)
    return Dialogue(fact.messages, fact.answer, fact.thought, tools)
