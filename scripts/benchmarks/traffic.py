"""Mixed requests: what clients of a local server send, right and wrong.

Owns their bodies and the answers that are to be expected. Must never know a connection.
Invariant: the same dice give the same requests; a ``Probe`` has one right answer, whatever runs
beside it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

COMPLETION, CHAT = "/v1/completions", "/v1/chat/completions"
_CITIES = ["Oslo", "Rome", "Cairo", "Lima", "Seoul", "Accra", "Quito", "Dublin"]
_STARTS = ["Once upon a time", "The red fox", "In a small house", "On Monday", "A boat"]

Body = dict[str, Any]


class Request(NamedTuple):
    """One request. ``statuses``: those that are right. ``leaves_after``: chunks to read of it."""

    kind: str
    path: str
    body: Body | bytes
    statuses: tuple[int, ...] = (200,)
    leaves_after: int | None = None


def probes() -> list[Request]:
    """Requests whose answer is the same at any time, by any of the ways that steer it."""
    greedy: Body = {"temperature": 0, "max_tokens": 24}
    seeded: Body = {"temperature": 0.9, "top_p": 0.95, "max_tokens": 16, "seed": 7}
    ask = [{"role": "user", "content": "What is the capital of France?"}]
    story = [{"role": "user", "content": "Tell me a story about a fox."}]
    city = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    chat: Body = {"messages": ask, "chat_template_kwargs": {"enable_thinking": False}}
    return [
        Request("greedy", COMPLETION, {"prompt": "Once upon a time", **greedy}),
        Request("greedy", COMPLETION, {"prompt": ["The red fox", "A boat"], **greedy}),
        Request("greedy", CHAT, {**chat, **greedy}),
        Request("greedy", CHAT, {"messages": story, **greedy, "max_tokens": 60}),
        Request("schema", CHAT, {**chat, **greedy, "response_format": schema_format(city)}),
        Request("regex", COMPLETION, {"prompt": "Name:", "regex": "[A-Z][a-z]{2,8}", **greedy}),
        Request("ban", CHAT, {"messages": story, **greedy, "banned": ["fox", " the"]}),
        Request("stop", COMPLETION, {"prompt": "Once", **greedy, "stop": [".", "was"]}),
        Request("tools", CHAT, {**chat, **greedy, "tools": [TOOL], "tool_choice": "required"}),
        Request("seeded", COMPLETION, {"prompt": "Once upon a time", **seeded}),
        Request("seeded", COMPLETION, {"prompt": "On Monday", **seeded, "n": 3, "top_k": 20}),
        Request("seeded", CHAT, {**chat, **seeded, "frequency_penalty": 0.5}),
    ]


TOOL: Body = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Paris", "Rome"]}},
            "required": ["city"],
        },
    },
}


def schema_format(schema: Body) -> Body:
    """A schema as OpenAI's clients send it."""
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}


def any_request(dice: random.Random) -> Request:
    """A request of any kind: most are right, some are wrong, some clients leave."""
    make = dice.choices([_steered, _sampled, _left, _wrong], [5, 4, 1, 1])[0]
    return make(dice)


def _sampled(dice: random.Random) -> Request:
    body: Body = {
        "prompt": f"{dice.choice(_STARTS)}, {dice.choice(_CITIES)}" * dice.choice([1, 1, 1, 12]),
        "max_tokens": dice.choice([1, 4, 12, 24, 48]),
        "temperature": dice.choice([0, 0.3, 0.7, 1.0, 1.4]),
    }
    options: Mapping[str, Callable[[], Any]] = {
        "top_p": lambda: dice.choice([0.5, 0.9, 0.99]),
        "top_k": lambda: dice.choice([1, 20, 200]),
        "min_p": lambda: dice.choice([0.01, 0.1]),
        "xtc_probability": lambda: 0.5,
        "frequency_penalty": lambda: dice.choice([0.2, 1.0]),
        "repetition_penalty": lambda: 1.1,
        "logit_bias": lambda: {
            str(dice.randrange(400)): 2.5 for _ in range(dice.choice([1, 5, 40]))
        },
        "seed": lambda: dice.randrange(1 << 62),
        "n": lambda: dice.randrange(1, 5),
        "logprobs": lambda: dice.randrange(0, 6),
        "stop": lambda: dice.choice([".", ["a", "the"], [" and", "\n", "!"]]),
        "banned": lambda: dice.choices(["the", "fox", "and", "was", "a b"], k=2),
        "stream": lambda: True,
        "ignore_eos": lambda: True,
        "min_tokens": lambda: 2,
    }
    for name in dice.sample(sorted(options), dice.randrange(5)):
        body[name] = options[name]()
    if "min_tokens" in body:
        body["max_tokens"] = max(4, body["max_tokens"])
    return Request("sampled", COMPLETION, body)


def _steered(dice: random.Random) -> Request:
    words = "".join(dice.choices("abcdefgh", k=4))
    schema: Body = {
        "type": "object",
        "properties": {
            dice.choice(["name", "city", words]): {"type": "string", "maxLength": 12},
            dice.choice(["age", "size", words + "x"]): {"type": "integer"},
            "kind": {"enum": dice.sample(_CITIES, 3)},
        },
        "required": ["kind"],
        "additionalProperties": False,
    }
    body: Body = {
        "messages": [
            {"role": "user", "content": f"JSON, record: {dice.choice(_CITIES)} {words}."},
        ],
        "max_tokens": dice.choice([8, 30, 60]),
        "temperature": dice.choice([0, 0.8]),
        "chat_template_kwargs": {"enable_thinking": dice.random() < 0.3},
        "stream": dice.random() < 0.5,
    }
    match dice.randrange(7):
        case 0:
            body |= {"response_format": schema_format(schema)}
        case 1:
            body |= {"json_schema": schema, "close_json": True}
        case 2:
            body |= {"response_format": {"type": "json_object"}, "n": 2}
        case 3:
            body |= {"tools": [TOOL], "tool_choice": dice.choice(["auto", "required"])}
        case 4:
            body |= {"regex": dice.choice(["[a-z]{3,9}", f"{words}[0-9]+ (yes|no)"])}
        case 5:
            body |= {"choice": dice.sample(_CITIES, 4), "logprobs": True, "top_logprobs": 3}
        case _:
            body |= {"grammar": f'start: "{words}" /[0-9]/ | "no"'}
    return Request("steered", CHAT, body)


def _left(dice: random.Random) -> Request:
    request = dice.choice([_sampled, _steered])(dice)
    assert isinstance(request.body, dict)
    body = {**request.body, "stream": True, "max_tokens": 200}
    if dice.random() < 0.5 and request.path == COMPLETION:
        body |= {"ignore_eos": True, "max_tokens": 2000}
    return request._replace(kind="left", body=body, leaves_after=dice.choice([0, 1, 3, 10]))


_WRONG: list[tuple[str, Body | bytes]] = [
    (COMPLETION, {"prompt": ""}),
    (COMPLETION, {"prompt": "a", "stop": 5}),
    (COMPLETION, {"prompt": "a", "logit_bias": {"999999999": 1}}),
    (COMPLETION, {"prompt": "a", "xtc_threshold": 0.9}),
    (COMPLETION, {"prompt": "a", "n": 1000}),
    (COMPLETION, {"prompt": "a", "regex": "("}),
    (COMPLETION, {"prompt": "a", "regex": "(a{1000}){1000}"}),
    (COMPLETION, {"prompt": "a", "json_schema": {"type": "nothing"}}),
    (COMPLETION, {"prompt": "a", "grammar": "start: missing"}),
    (COMPLETION, b"{"),
    (COMPLETION, b'{"prompt": ' + b"[" * 50_000 + b"]" * 50_000 + b"}"),
    (COMPLETION, b'{"prompt": "\\ud800", "max_tokens": 2}'),
    (COMPLETION, {"prompt": "a" * 200_000}),
    (CHAT, {"messages": []}),
    (CHAT, {"messages": [{"role": "king", "content": "a"}]}),
    (CHAT, {"messages": [{"role": "user", "content": "a"}], "tool_choice": "required"}),
    ("/tokenize", {}),
    ("/detokenize", {"tokens": [1 << 40]}),
]


def _wrong(dice: random.Random) -> Request:
    path, body = dice.choice(_WRONG)
    return Request("wrong", path, body, statuses=(400,))
