"""What requests mean, whichever API they come by: every line of ``tests/data/requests``.

A line has a body, and what comes of it: the code and the field of a refusal, or what is asked of
the engine. ``more`` are fields beside those of the plainest body of its API, and only what differs
from what that one asks for is told, unless the line is to tell the ``whole``. Control tokens of a
prompt are in ⟦ ⟧, so that they are told from text which spells them. Lines that were meant to
change are written again by ``python -m tests.server.test_requests``; what that changes is to be
read.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import pytest

from mlxgen.engine import Options
from mlxgen.server.ask import Ask
from mlxgen.server.errors import RequestError
from mlxgen.server.peers import INFILL, MESSAGES, OPENAI, RESPONSES
from mlxgen.server.served_model import ServedModel

from ..effort import ALL
from .apis import ENDPOINTS
from .kit import demo, model_of
from .running import WAIT, Running

DATA = Path(__file__).parents[1] / "data" / "requests"
ABOUT = ("case", "model", "whole", "body", "more")


def lines(api: str) -> Iterator[dict[str, Any]]:
    with (DATA / f"{api}.jsonl").open(encoding="utf-8") as file:
        yield from map(json.loads, file)


def body_of(api: str, line: Mapping[str, Any]) -> dict[str, Any]:
    plainest = dict(ENDPOINTS[api].plainest)
    body: dict[str, Any] = line.get("body", plainest | line.get("more", {}))
    return json.loads(json.dumps(body)) if body else {}


def told(options: Options) -> dict[str, Any]:
    """The options by name, as JSON."""
    found = {each.name: getattr(options, each.name) for each in fields(options)}
    sampling, filters = found.pop("sampling"), found.pop("filters")
    found |= {each.name: getattr(sampling, each.name) for each in fields(sampling)}
    found["hooks"] = len(found["hooks"])
    plainly: dict[str, Any] = json.loads(
        json.dumps(found | {"filters": [shape(spec) for spec in filters]})
    )
    return plainly


def shape(spec: Any) -> str:
    """What a specification is made of."""
    inside = []
    for each in fields(spec) if is_dataclass(spec) else ():
        if each.name.startswith("_"):
            continue
        value = getattr(spec, each.name)
        parts = value if isinstance(value, list | tuple) else [value]
        inside += [shape(part) for part in parts if hasattr(part, "bind")]
    return type(spec).__name__ + (f"({', '.join(inside)})" if inside else "")


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
        "named": ask.name,
        "stream": ask.stream,
        "watched": ask.watched,
        "own_stops": list(ask.own_stops),
        "ignored": list(ask.ignored),
    }


@cache
def plainest(api: str, model: str) -> dict[str, Any]:
    if model_of(model).vocabulary is demo().vocabulary:
        model = "demo"
    try:
        return asked(ENDPOINTS[api].parse(ENDPOINTS[api].plainest, model_of(model)))
    except RequestError:  # not with this model
        return {} if model == "demo" else plainest(api, "demo")


def outcome(api: str, line: Mapping[str, Any]) -> dict[str, Any]:
    """What comes of the body of a line, as it tells it."""
    model, body = line.get("model", "demo"), body_of(api, line)
    try:
        found = asked(ENDPOINTS[api].parse(body, model_of(model)))
    except RequestError as error:
        said = error.body()["error"]
        assert set(said) == {"message", "type", "param", "code"}
        assert 0 < len(said["message"].encode()) < 700
        refused = {"code": error.code, "param": error.param}
        return {"refused": refused | ({} if error.status == 400 else {"status": error.status})}
    usual = {} if line.get("whole") else plainest(api, model)
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
    for api in ENDPOINTS:
        for line in lines(api):
            found = outcome(api, line)
            if found != {name: value for name, value in line.items() if name not in ABOUT}:
                wrong.append((api, line, found))
    assert not wrong


def test_every_field_of_other_servers_has_a_line() -> None:
    tables: dict[tuple[str, ...], Collection[str]] = {
        ("chat", "completions"): OPENAI,
        ("infill",): INFILL.keys() - OPENAI.keys(),
        ("messages",): MESSAGES,
        ("responses",): RESPONSES,
    }
    for apis, names in tables.items():
        tried = {name for api in apis for line in lines(api) for name in body_of(api, line)}
        untried = {name for name in names if not {name, name.partition(".")[0]} & tried}
        assert not untried


@pytest.mark.parametrize("api", ENDPOINTS)
def test_a_server_says_the_same_over_http(api: str, server: Running) -> None:
    path, plainest = ENDPOINTS[api].path, ENDPOINTS[api].plainest
    counts: Counter[bool] = Counter()
    with httpx.Client(base_url=server.url, timeout=WAIT) as client:
        for line in lines(api):
            body, refused = body_of(api, line), line.get("refused")
            counts[refused is None] += 1
            every = 16 if refused is None else 1 if ALL else 4
            if line.get("model", "demo") != "demo" or counts[refused is None] % every:
                continue
            limit = "max_output_tokens" if api == "responses" else "max_tokens"
            if refused is None and (api == "chat" or limit in plainest):
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
    for api in ENDPOINTS:
        whole = [
            {name: line[name] for name in ABOUT if name in line} | outcome(api, line)
            for line in lines(api)
        ]
        text = "".join(f"{written(line)}\n" for line in whole)
        (DATA / f"{api}.jsonl").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write()
