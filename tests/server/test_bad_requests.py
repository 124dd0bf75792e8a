"""Bodies and bytes that should hurt: refused with a reason, in time, while others are served."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from .running import WAIT, Running, endless, events, question

IN_TIME = 30.0  # seconds; one or two on a machine that does nothing else
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


def deep(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    return schema


def form(schema: Any) -> dict[str, Any]:
    body = {"name": "x", "schema": schema, "strict": True}
    return question(response_format={"type": "json_schema", "json_schema": body})


def chat(**fields: Any) -> tuple[str, Any]:
    return CHAT, question(**fields)


def text(**fields: Any) -> tuple[str, Any]:
    return TEXT, {"prompt": "a", "max_tokens": 2, **fields}


def tool(**fields: Any) -> list[dict[str, Any]]:
    return [{"type": "function", "function": {"name": "f", **fields}}]


HUGE = {f"property {i}": {"type": "string"} for i in range(9000)}
FORM = "response_format"
IMAGE = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}
NAMED = {"type": "function", "function": {"name": "g"}}
BAD = {"parameters": {"type": "strnig"}}
KWARGS = "chat_template_kwargs"
PADDING = {"padding": "max_length", "max_length": 10_000_000}
TEMPLATED = {"messages": [{"role": "user", "content": "a"}], KWARGS: {"chat_template": "a"}}
CONTRADICTION = {"type": "string", "minLength": 3, "maxLength": 1}
CYCLE = {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}

# A name, then the path and the body, and the status and the field of the error where known.
BODIES: list[tuple[str, tuple[str, Any], int | None, str | None]] = [
    ("no body", (CHAT, b""), 400, None),
    ("half a body", (CHAT, b'{"messages": ['), 400, None),
    ("a list", (CHAT, b"[]"), 400, None),
    ("nesting in vain", (CHAT, b"[" * 500_000), 400, None),
    ("deep messages", (CHAT, b'{"messages":' * 60_000 + b"1" + b"}" * 60_000), 400, None),
    ("no JSON number", (CHAT, b'{"messages": [], "temperature": NaN}'), 400, None),
    ("a name twice", (CHAT, b'{"n": 1, "n": 2}'), 400, None),
    ("not UTF-8", (CHAT, b'{"messages": "\xff"}'), 400, None),
    ("ten megabytes", (CHAT, b'{"messages": "' + b"x" * 10_000_000 + b'"}'), 413, None),
    ("a lone surrogate", (TEXT, b'{"prompt": "\\ud800"}'), 400, "prompt"),
    ("a NUL", (TEXT, b'{"prompt": "a\\u0000b"}'), 400, "prompt"),
    ("a surrogate for a name", (TEXT, b'{"\\udfff": 1}'), 400, None),
    ("100,000 stops", chat(stop=["x"] * 100_000), 400, "stop"),
    ("an infinite temperature", (TEXT, b'{"prompt": "a", "temperature": 1e999}'), 400, None),
    ("a prompt longer than the context", text(prompt="word " * 20_000), 400, "prompt"),
    ("a chat longer than the context", (CHAT, question("word " * 20_000)), 400, "messages"),
    ("a broken expression", text(regex="(a"), 400, "regex"),
    ("an expression that explodes", text(regex="(?:a?){2000}a{2000}"), 400, "regex"),
    ("a broken grammar", text(grammar="start: ("), 400, "grammar"),
    ("an enormous schema", (CHAT, form({"type": "object", "properties": HUGE})), 400, FORM),
    ("an endless schema", (CHAT, form(CYCLE)), 400, FORM),
    ("a contradiction", (CHAT, form(CONTRADICTION)), 400, FORM),
    ("a schema that is none", (CHAT, form({"type": "strnig"})), 400, FORM),
    ("a deep schema", (CHAT, form(deep(250))), 400, None),
    ("a choice that is banned", text(choice=["hi"], banned_strings=["hi"]), 400, "choice"),
    ("no letter left", text(regex="[ab]{3}", banned_strings=["a", "b"]), 400, "regex"),
    ("an end for a text", text(grammar="start: <|im_end|>"), 400, "grammar"),
    ("an end in a text", text(grammar='start: "a" <|im_end|> "b"'), 400, "grammar"),
    ("a template to tokenize with", ("/tokenize", TEMPLATED), 400, KWARGS),
    ("tokens that are none", ("/detokenize", {"tokens": ["a"]}), 400, None),
    ("tokens outside of it", ("/detokenize", {"tokens": [5, 99999]}), 400, "tokens[1]"),
    ("nothing to tokenize", ("/tokenize", {}), 400, "prompt"),
    ("two things to tokenize", ("/tokenize", {"prompt": "a", "content": "b"}), 400, "content"),
]  # fmt: skip


@pytest.fixture(scope="module")
def healthy(server: Running) -> Iterator[list[float]]:
    """A stream that goes on meanwhile, again and again; the times of its events."""
    times: list[float] = []
    over = threading.Event()

    def read() -> None:
        while not over.is_set():
            body = endless(stream=True, max_tokens=400)
            with httpx.stream("POST", server.url + TEXT, json=body, timeout=WAIT) as answer:
                assert answer.status_code == 200
                for _ in events(answer.iter_lines()):
                    times.append(time.monotonic())
                    if over.is_set():
                        return

    reader = threading.Thread(target=read)
    reader.start()
    server.wait_until(lambda: bool(times), "no healthy stream")
    yield times
    over.set()
    reader.join(WAIT)
    assert not reader.is_alive()


@pytest.mark.parametrize(
    ("name", "request_", "status", "param"), BODIES, ids=[b[0] for b in BODIES]
)
def test_a_bad_body_is_refused_in_time_with_a_reason_and_a_healthy_stream_goes_on(
    server: Running,
    healthy: list[float],
    name: str,
    request_: tuple[str, Any],
    status: int | None,
    param: str | None,
) -> None:
    path, body = request_
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    began, seen = time.monotonic(), len(healthy)
    answer = httpx.post(
        server.url + path, content=data, headers={"content-type": "application/json"}, timeout=WAIT
    )
    took = time.monotonic() - began
    assert 400 <= answer.status_code < 500, answer.text
    assert status is None or answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert error["message"]
    assert len(error["message"]) < 1000
    assert param is None or error["param"] == param, error
    assert took < IN_TIME
    gaps = [
        after - before for before, after in zip(healthy[seen:], healthy[seen + 1 :], strict=False)
    ]
    assert max(gaps, default=0) < IN_TIME
    server.wait_until(lambda: len(healthy) > seen, "the healthy stream stands still")


@pytest.mark.parametrize(
    "fields",
    [
        {"top_k": 10**30},
        {"seed": -(10**30)},
        {"top_k": 151_936, "top_p": 1e-300, "min_p": 1.0},
        {"logit_bias": {"5": -100}, "temperature": 100},
        {"max_tokens": 10**9, "stop": ["e", "a", "o", " "]},
        dict.fromkeys(("stop", "n", "stream", "logprobs", "stream_options", "seed")),
        {"stream_options": None, "stream": True},
        {"prompt": ["a", "b"], "xtc_probability": 1, "xtc_threshold": 0.5},
    ],
)
def test_what_is_extreme_or_null_and_allowed_is_answered(
    server: Running, fields: dict[str, Any]
) -> None:
    assert server.post(*text(**fields)).status_code == 200


def test_a_body_that_stops_coming_occupies_nobody(server: Running) -> None:
    left = 'mlxgen_requests_total{endpoint="/v1/completions",outcome="client_gone"}'
    before = server.figure(left)
    with socket.create_connection(("127.0.0.1", server.port), WAIT) as link:
        link.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\n"
            b'Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{"prompt"'
        )
        assert server.chat({"max_tokens": 2}).status_code == 200
    server.wait_until(lambda: server.figure(left) == before + 1, "the request is still there")
