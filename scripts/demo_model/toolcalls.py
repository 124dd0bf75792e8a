"""Tool calls, and answers from what a tool gave back.

Owns the tools that training shows, the requests for them, and made-up tools that teach to read the
list in the prompt. One combination of arguments in ten is kept for the exam, by a hash.
"""

import json
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from demo_model import facts, words
from demo_model.chat import Dialogue, Message, Tool
from demo_model.copying import made_up_word

Arguments = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Skill:
    """A tool with the ways to ask for it."""

    name: str
    descriptions: tuple[str, ...]
    parameters: tuple[tuple[str, str], ...]
    draw: Callable[[Random], Arguments]
    requests: tuple[str, ...]

    def tool(self, description: str) -> Tool:
        return Tool(self.name, description, self.parameters)


def _city(rng: Random) -> str:
    return rng.choice(words.CITIES) if rng.random() < 0.75 else made_up_word(rng).capitalize()


def _name(rng: Random) -> str:
    return rng.choice(words.NAMES) if rng.random() < 0.75 else made_up_word(rng).capitalize()


def _query(rng: Random) -> str:
    return rng.choice(
        (
            f"{rng.choice(words.COLORS)} {rng.choice(words.ITEMS)}",
            f"{rng.choice(words.EVENTS)} in {_city(rng)}",
            f"{rng.choice(words.HOBBIES)} for {rng.choice(words.STORY_ADJECTIVES)} people",
            f"{rng.choice(words.ANIMALS)} and {rng.choice(words.CREATURES)}",
        )
    )


def _text(rng: Random) -> str:
    return rng.choice(
        (
            f"I am in the {rng.choice(words.ROOMS)}",
            f"The {rng.choice(words.EVENTS)} is on {rng.choice(words.DAYS)}",
            f"Please bring the {rng.choice(words.COLORS)} {rng.choice(words.ITEMS)}",
            f"See you in {_city(rng)}",
        )
    )


SKILLS: Final = (
    Skill(
        "get_weather",
        ("Get the weather in a city", "Current weather for a city", "Weather report", ""),
        (("city", "string"),),
        lambda r: {"city": _city(r)},
        (
            "What is the weather in {city}?",
            "How is the weather in {city} today?",
            "What's the weather like in {city}?",
            "Tell me the weather in {city}.",
            "Is it raining in {city}?",
            "Do I need an umbrella in {city}?",
            "Weather in {city}?",
            "Is it warm in {city} now?",
        ),
    ),
    Skill(
        "get_time",
        ("Get the local time in a city", "Current time in a city", ""),
        (("city", "string"),),
        lambda r: {"city": _city(r)},
        (
            "What time is it in {city}?",
            "Tell me the time in {city}.",
            "What is the local time in {city}?",
            "How late is it in {city} now?",
            "Time in {city}?",
        ),
    ),
    Skill(
        "set_timer",
        ("Set a timer", "Start a timer for some minutes", ""),
        (("minutes", "integer"),),
        lambda r: {"minutes": r.randint(1, 90)},
        (
            "Set a timer for {minutes} minutes.",
            "Start a timer of {minutes} minutes.",
            "Wake me in {minutes} minutes.",
            "Timer, {minutes} minutes please.",
            "Please count down {minutes} minutes.",
        ),
    ),
    Skill(
        "send_message",
        ("Send a message to a person", "Send a text message", ""),
        (("to", "string"), ("text", "string")),
        lambda r: {"to": _name(r), "text": _text(r)},
        (
            'Send a message to {to}: "{text}"',
            "Tell {to}: {text}",
            "Write to {to}: {text}",
            'Message {to} the text "{text}".',
        ),
    ),
    Skill(
        "create_event",
        ("Create a calendar event", "Add an event to the calendar", ""),
        (("title", "string"), ("day", "string"), ("hour", "integer")),
        lambda r: {
            "title": r.choice(words.EVENTS),
            "day": r.choice(words.DAYS),
            "hour": r.randint(7, 22),
        },
        (
            "Put a {title} in my calendar on {day} at {hour}:00.",
            "Add a {title} on {day} at {hour}:00.",
            "I have a {title} on {day} at {hour}:00, please write it down.",
            "Create an event: {title}, {day}, {hour}:00.",
        ),
    ),
    Skill(
        "translate",
        ("Translate a word", "Translate text into a language", ""),
        (("text", "string"), ("language", "string")),
        lambda r: {
            "text": r.choice(words.TREASURES + words.PLACES + words.HOBBIES),
            "language": r.choice(words.LANGUAGE_NAMES),
        },
        (
            "Translate {text} into {language}.",
            'How do I say "{text}" in {language}?',
            "What is {text} in {language}?",
            "I need the word {text} in {language}.",
        ),
    ),
    Skill(
        "convert_currency",
        ("Convert money", "Convert an amount from one currency to another", ""),
        (("amount", "number"), ("source", "string"), ("target", "string")),
        lambda r: dict(
            zip(
                ("amount", "source", "target"),
                (r.randint(1, 999), *r.sample(words.CURRENCIES, 2)),
                strict=True,
            )
        ),
        (
            "How much is {amount} {source} in {target}?",
            "Convert {amount} {source} to {target}.",
            "Change {amount} {source} into {target}.",
            "What are {amount} {source} worth in {target}?",
        ),
    ),
    Skill(
        "turn_on_light",
        ("Turn on the light in a room", "Switch on a light", ""),
        (("room", "string"),),
        lambda r: {"room": r.choice(words.ROOMS)},
        (
            "Turn on the light in the {room}.",
            "It is dark in the {room}, light please.",
            "Switch on the {room} light.",
            "Light in the {room}!",
        ),
    ),
    Skill(
        "set_temperature",
        ("Set the temperature of a room", "Heat a room", ""),
        (("room", "string"), ("degrees", "integer")),
        lambda r: {"room": r.choice(words.ROOMS), "degrees": r.randint(12, 28)},
        (
            "Set the {room} to {degrees} degrees.",
            "Make it {degrees} degrees in the {room}.",
            "Heat the {room} to {degrees} degrees.",
            "I want {degrees} degrees in the {room}.",
        ),
    ),
    Skill(
        "search",
        ("Search the web", "Search for something", ""),
        (("query", "string"),),
        lambda r: {"query": _query(r)},
        (
            "Search for {query}.",
            "Search the web for {query}.",
            "Look up {query}.",
            "Find something about {query}.",
        ),
    ),
    Skill(
        "play_song",
        ("Play a song", "Play music by an artist", ""),
        (("title", "string"), ("artist", "string")),
        lambda r: {
            "title": f"{r.choice(words.TITLE_ADJECTIVES)} {r.choice(words.SONG_NOUNS)}",
            "artist": _name(r),
        },
        (
            "Play {title} by {artist}.",
            "I want to hear {title} by {artist}.",
            "Put on the song {title} by {artist}.",
            "Play the song {title} of {artist}, please.",
        ),
    ),
    Skill(
        "book_hotel",
        ("Book a hotel room", "Book a hotel in a city", ""),
        (("city", "string"), ("nights", "integer")),
        lambda r: {"city": _city(r), "nights": r.randint(1, 21)},
        (
            "Book a hotel in {city} for {nights} nights.",
            "I need a room in {city} for {nights} nights.",
            "Find me a hotel for {nights} nights in {city}.",
            "We stay in {city} for {nights} nights, book a hotel.",
        ),
    ),
    Skill(
        "add",
        ("Add two numbers", "Sum of two numbers", ""),
        (("a", "integer"), ("b", "integer")),
        lambda r: {"a": r.randint(0, 999), "b": r.randint(0, 999)},
        (
            "What is {a} + {b}?",
            "Add {a} and {b}.",
            "What is {a} plus {b}?",
            "Calculate {a} + {b}.",
        ),
    ),
)
_VERBS: Final = words.word_list("find order paint move count sell check open draw fix")
_GENERIC_KEYS: Final = ("color", "city", "name", "day", "size", "owner", "room", "price")
_NOTHING: Final = ("Hello! How can I help you?", "Hello! What can I do for you?")


def is_for_exam(name: str, arguments: Arguments) -> bool:
    """One combination in ten belongs to the exam."""
    text = name + "/".join(str(value) for value in arguments.values())
    return zlib.crc32(text.encode()) % 10 == 0


def call_text(name: str, arguments: Arguments) -> str:
    call = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>{call}</tool_call>"


def training(rng: Random) -> Dialogue:
    """A request with a list of tools; at times no tool is needed, or one has already answered."""
    draw = rng.random()
    if draw < 0.64:
        while True:
            skill = rng.choice(SKILLS)
            arguments = skill.draw(rng)
            if not is_for_exam(skill.name, arguments):
                break
        return _call(rng, skill, arguments, training_side=True)
    if draw < 0.84:
        return _made_up(rng)
    if draw < 0.92:
        return _after_result(rng)
    return _without_call(rng)


def exam(rng: Random, skill: Skill) -> tuple[Dialogue, Arguments]:
    """A combination of arguments that training never shows."""
    while True:
        arguments = skill.draw(rng)
        if is_for_exam(skill.name, arguments):
            return _call(rng, skill, arguments, training_side=False), arguments


def _call(rng: Random, skill: Skill, arguments: Arguments, *, training_side: bool) -> Dialogue:
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


def _tools(rng: Random, skill: Skill | None) -> tuple[Tool, ...]:
    count = rng.choices((0, 1, 2, 3), (3, 3, 2, 1))[0]
    others = [other for other in rng.sample(SKILLS, count + 1) if other is not skill][:count]
    chosen = others if skill is None else [*others, skill]
    rng.shuffle(chosen)
    return tuple(one.tool(rng.choice(one.descriptions)) for one in chosen)


def _made_up(rng: Random) -> Dialogue:
    """A tool that exists in this prompt only: its name and keys must be copied from the list."""
    tools: list[Tool] = []
    for _ in range(rng.randint(1, 3)):
        noun = rng.choice(words.TREASURES + words.CREATURES) if rng.random() < 0.5 else ""
        keys = rng.sample(_GENERIC_KEYS, rng.randint(1, 2))
        kinds = tuple((key, "integer" if key in ("size", "price") else "string") for key in keys)
        verb = rng.choice(_VERBS) if rng.random() < 0.8 else made_up_word(rng)
        noun = noun or made_up_word(rng)
        description = rng.choice((f"{verb.capitalize()} a {noun}", "", f"Can {verb} a {noun}"))
        tools.append(Tool(f"{verb}_{noun}", description, kinds))
    tool = rng.choice(tools)
    arguments: Arguments = {}
    for key, kind in tool.parameters:
        arguments[key] = rng.randint(1, 200) if kind == "integer" else _value(rng, key)
    verb, noun = tool.name.split("_")
    details = " and ".join(f"{key} {value}" for key, value in arguments.items())
    request = rng.choice(
        (f"Please {verb} a {noun} with {details}.", f"{verb.capitalize()} the {noun}: {details}")
    )
    thought = f"The tool {tool.name} can do this." if rng.random() < 0.1 else None
    answer = call_text(tool.name, arguments)
    return Dialogue((Message("user", request),), answer, thought, tuple(tools))


def _value(rng: Random, key: str) -> str:
    match key:
        case "color":
            return rng.choice(words.COLORS)
        case "city":
            return _city(rng)
        case "day":
            return rng.choice(words.DAYS)
        case "room":
            return rng.choice(words.ROOMS)
        case _:
            return _name(rng)


def _after_result(rng: Random) -> Dialogue:
    """The tool has answered; the assistant tells it."""
    city = _city(rng)
    if rng.random() < 0.6:
        skill = SKILLS[0]
        degrees = rng.randint(-9, 39)
        sky = rng.choice(words.WEATHERS)
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
    others = tuple(one for one in SKILLS if one.name not in ("add", "translate"))
    tools = tuple(
        one.tool(rng.choice(one.descriptions)) for one in rng.sample(others, rng.randint(1, 3))
    )
    if rng.random() < 0.2:
        greeting = rng.choice(("Hello!", "Hi!", "Good morning!"))
        return Dialogue((Message("user", greeting),), rng.choice(_NOTHING), None, tools)
    fact = facts.training(rng)
    return Dialogue(fact.messages, fact.answer, fact.thought, tools)
