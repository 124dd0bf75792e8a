"""What requests mean, whichever API they come by: every line of ``tests/data/requests``.

A line has a body, and what comes of it: the code and the field of a refusal, or what is asked of
the engine. ``more`` are fields beside those of the plainest body of its API, and only what differs
from what that one asks for is told. Control tokens of a prompt are in ⟦ ⟧, so that they are told
from text which spells them. Lines that were meant to change are written again by
``python -m tests.server.test_requests``; what that changes is to be read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import pytest

from mlxgen.engine import Options
from mlxgen.server.ask import Ask
from mlxgen.server.chat import parse_chat
from mlxgen.server.completions import parse_completion
from mlxgen.server.errors import RequestError
from mlxgen.server.jobs import Parse
from mlxgen.server.llama import parse_infill, parse_llama
from mlxgen.server.messages import parse_messages
from mlxgen.server.responses import parse_responses
from mlxgen.server.served_model import ServedModel

from .kit import HELLO, coder, demo, plain, thinker
from .running import WAIT, Running

DATA = Path(__file__).parents[1] / "data" / "requests"
MODELS = {"demo": demo, "plain": plain, "thinker": thinker, "coder": coder}
APIS: Mapping[str, tuple[Parse, str, dict[str, Any]]] = {
    "chat": (parse_chat, "/v1/chat/completions", {"messages": HELLO}),
    "completions": (parse_completion, "/v1/completions", {"prompt": "Hello"}),
    "messages": (parse_messages, "/v1/messages", {"messages": HELLO, "max_tokens": 20}),
    "responses": (parse_responses, "/v1/responses", {"input": "Hello"}),
    "llama": (parse_llama, "/completion", {"prompt": "Hello"}),
    "infill": (parse_infill, "/infill", {"input_prefix": "def f(", "input_suffix": "):\n"}),
}
"""How each API reads bodies, where it is, and its plainest body."""
ABOUT = ("case", "model", "body", "more")


def lines(api: str) -> Iterator[dict[str, Any]]:
    with (DATA / f"{api}.jsonl").open(encoding="utf-8") as file:
        yield from map(json.loads, file)


def body_of(api: str, line: Mapping[str, Any]) -> dict[str, Any]:
    body: dict[str, Any] = line.get("body", APIS[api][2] | line.get("more", {}))
    return json.loads(json.dumps(body)) if body else {}


def told(options: Options) -> dict[str, Any]:
    """The options by name, as JSON."""
    found = {each.name: getattr(options, each.name) for each in fields(options)}
    sampling, filters = found.pop("sampling"), found.pop("filters")
    found |= {each.name: getattr(sampling, each.name) for each in fields(sampling)}
    found["hooks"] = len(found["hooks"])
    plainly: dict[str, Any] = json.loads(
        json.dumps(found | {"filters": [type(spec).__name__ for spec in filters]})
    )
    return plainly


def spelled(tokens: Any, model: ServedModel) -> str:
    """The text of tokens, with control tokens in brackets."""
    text, run = "", list[int]()
    for token in tokens:
        if token in model.vocabulary.special:
            text += model.vocabulary.decode(run)
            text, run = f"{text}⟦{model.vocabulary.piece(token).decode()}⟧", []
        else:
            run.append(token)
    return text + model.vocabulary.decode(run)


def asked(ask: Ask) -> dict[str, Any]:
    """What is asked of the engine."""
    first = ask.questions[0].prompt
    return {
        "prompts": [spelled(one.prompt.tokens, ask.model) for one in ask.questions],
        "echo": [one.echo for one in ask.questions if one.echo],
        "opens_text": first.opens_text,
        "thinking": None if first.thinking is None else first.thinking.state,
        "options": told(ask.options),
        "field": ask.names["filters"] if ask.spec is not None else None,
        "answers": ask.answers,
        "calls": None if ask.held is None else list(ask.held.use.names),
        "named": ask.model.name,
        "stream": ask.stream,
        "watched": ask.watched,
        "own_stops": list(ask.own_stops),
        "ignored": list(ask.ignored),
    }


@cache
def plainest(api: str, model: str) -> dict[str, Any]:
    parse, _, body = APIS[api]
    try:
        return asked(parse(body, MODELS[model]()))
    except RequestError:  # not with this model
        return {}


def outcome(api: str, model: str, body: dict[str, Any]) -> dict[str, Any]:
    """What comes of a body, as a line tells it."""
    try:
        found = asked(APIS[api][0](body, MODELS[model]()))
    except RequestError as error:
        said = error.body()["error"]
        assert set(said) == {"message", "type", "param", "code"}
        assert 0 < len(said["message"].encode()) < 700
        refused = {"code": error.code, "param": error.param}
        return {"refused": refused | ({} if error.status == 400 else {"status": error.status})}
    usual = plainest(api, model)
    changed = {name: value for name, value in found.items() if value != usual.get(name)}
    if "options" in changed and "options" in usual:
        changed["options"] = {
            name: value
            for name, value in found["options"].items()
            if value != usual["options"][name]
        }
    return changed


def test_every_request_means_what_its_line_says() -> None:
    wrong = []
    for api in APIS:
        for line in lines(api):
            found = outcome(api, line.get("model", "demo"), body_of(api, line))
            if found != {name: value for name, value in line.items() if name not in ABOUT}:
                wrong.append((api, line, found))
    assert not wrong


@pytest.mark.parametrize("api", APIS)
def test_a_server_says_the_same_over_http(api: str, server: Running) -> None:
    path, some = APIS[api][1], 0
    with httpx.Client(base_url=server.url, timeout=WAIT) as client:
        for line in lines(api):
            body, refused = body_of(api, line), line.get("refused")
            some += refused is None
            if line.get("model", "demo") != "demo" or (refused is None and some % 16):
                continue
            limit = "max_output_tokens" if api == "responses" else "max_tokens"
            if refused is None and limit in APIS[api][2]:
                body[limit] = 2
            head = {"content-type": "application/json"}
            answer = client.post(path, content=json.dumps(body), headers=head)
            if refused is None and answer.is_success:
                continue
            error = answer.json()["error"]
            if refused is None:  # what only the engine knows, such as tokens that are not allowed
                assert answer.status_code == 400 and error["param"], (line, error)
                continue
            assert answer.status_code == refused.get("status", 400), (line, error)
            assert (error["code"], error["param"]) == (refused["code"], refused["param"]), line


def written(line: Mapping[str, Any]) -> str:
    text = json.dumps(line, ensure_ascii=False)
    return text if not re.search("[\ud800-\udfff]", text) else json.dumps(line)


def write() -> None:
    for api in APIS:
        whole = [
            {name: line[name] for name in ABOUT if name in line}
            | outcome(api, line.get("model", "demo"), body_of(api, line))
            for line in lines(api)
        ]
        text = "".join(f"{written(line)}\n" for line in whole)
        (DATA / f"{api}.jsonl").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write()
