"""What is sent to a server and what comes of it: ``tests/data/server/exchanges.jsonl``.

Each line is ``to`` a server, which a test has carry out its lines. It has a ``body`` for the
``path`` of a POST, by default that which takes such a body (a text is sent as it is), or is a
``get``. Or it ``asks`` in the words of ``Api.body``: each of the three APIs for chats then answers,
as a whole and as a stream that says the same, and a ``form`` is kept.

What comes back ``says`` at least this, ``headers`` and the ``raw`` text included, or is ``refused``
with an error that says this; its ``status`` is 200 or 400 if none is told. In texts, ~ begins an
expression that is searched for; ``null`` also stands for what is not there. Lines that are ``slow``
are left to --all.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import jsonschema

from ..effort import ALL
from .apis import APIS, CHAT, ENDPOINTS, RESPONSES
from .running import Running

DATA = Path(__file__).parents[1] / "data" / "server"
PATHS = {
    "messages": CHAT.path,
    "prompt": ENDPOINTS["completions"].path,
    "input": RESPONSES.path,
}


def lines(table: str) -> list[dict[str, Any]]:
    """Those of a table of ``tests/data/server``."""
    text = (DATA / f"{table}.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def carry_out(server: Running, to: str, **known: str) -> None:
    """Have the exchanges ``to`` a server; ``known`` are the ``{names}`` in their paths."""
    wrong = []
    for line in lines("exchanges"):
        if line["to"] != to or (line.get("slow") and not ALL):
            continue
        wrong += [
            (line, each) for each in _said(server, line, known) if not fits(each, wanted(line))
        ]
    assert not wrong, "\n".join(f"{line}\ncame to {str(found)[:1500]}" for line, found in wrong)


def wanted(line: Mapping[str, Any]) -> dict[str, Any]:
    """The outcome that a line tells."""
    refused = {"error": line["refused"]} if "refused" in line else {}
    return {"http": line.get("status", 400 if refused else 200), **line.get("says", {}), **refused}


def fits(found: Any, wanted: Any) -> bool:
    """Whether what was found is what is wanted, or has it in it."""
    if isinstance(wanted, dict):
        return isinstance(found, Mapping) and all(
            fits(found.get(name), each) for name, each in wanted.items()
        )
    if isinstance(wanted, list):
        return (
            isinstance(found, list | tuple)
            and len(found) == len(wanted)
            and all(map(fits, found, wanted))
        )
    if isinstance(wanted, str) and wanted.startswith("~"):
        return re.search(wanted[1:], str(found)) is not None
    return bool(found == wanted)


def _said(server: Running, line: Mapping[str, Any], known: Mapping[str, str]) -> Iterator[Any]:
    """What comes back, once for each API."""
    headers = line.get("headers", {})
    if "get" in line:
        yield outcome(server.get(line["get"], headers=headers))
    elif "asks" in line:
        for api in APIS:
            body = api.body(**line["asks"])
            whole, answer = api.answered(server, body, headers=headers)
            streamed, _ = api.answered(server, {**body, "stream": True}, headers=headers)
            if whole is None or streamed is None:
                assert whole is streamed, (line, api.name)
                yield outcome(answer)
                continue
            assert whole._replace(cached=0) == streamed._replace(cached=0), (line, api.name)
            if "form" in line["asks"] and not whole.calls:
                jsonschema.validate(json.loads(whole.text), line["asks"]["form"])
            for name, given in whole.calls if whole.reason == "calls" else ():
                (tool,) = (each for each in line["asks"]["functions"] if each.get("name") == name)
                jsonschema.validate(given, tool["parameters"])
            yield {**outcome(answer), **whole._asdict()}
    else:
        body = line["body"]
        data = body if isinstance(body, str) else json.dumps(body)
        path = line.get("path") or next(PATHS[name] for name in PATHS if name in body)
        yield outcome(server.send_text(path.format(**known), data, headers))


def outcome(answer: httpx.Response) -> dict[str, Any]:
    """An answer as a line tells it: the fields of its object, and what is around it."""
    told: dict[str, Any] = {"http": answer.status_code, "headers": answer.headers}
    told["raw"] = answer.text
    is_json = answer.headers.get("content-type") == "application/json"
    found = answer.json() if is_json else None
    return {**(found if isinstance(found, dict) else {"list": found}), **told}
