"""Bodies and bytes that should hurt: refused with a reason, in time, while others are served."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from functools import reduce
from itertools import pairwise
from typing import Any

import httpx
import pytest

from . import apis
from .kit import HELLO
from .running import WAIT, Running, endless, events

IN_TIME = 30.0  # seconds; one or two on a machine that does nothing else
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


def form(schema: Any) -> dict[str, Any]:
    return {"messages": HELLO, **apis.CHAT.form(schema)}


def text(**fields: Any) -> dict[str, Any]:
    return {"prompt": "a", "max_tokens": 2, **fields}


HUGE = {f"property {i}": {"type": "string"} for i in range(9000)}
CONTRADICTION = {"type": "string", "minLength": 3, "maxLength": 1}
CYCLE = {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}
DEEP: dict[str, Any] = reduce(lambda inner, _: {"properties": {"a": inner}}, range(250), {})
KWARGS = {"chat_template_kwargs": {"chat_template": "a"}}
FORM = "response_format"

# A name, the path, the body, and the field of the error where it is known.
BODIES: list[tuple[str, str, Any, str | None]] = [
    ("no body", CHAT, b"", None),
    ("half a body", CHAT, b'{"messages": [', None),
    ("nesting in vain", CHAT, b"[" * 500_000, None),
    ("deep messages", CHAT, b'{"messages":' * 60_000 + b"1" + b"}" * 60_000, None),
    ("ten megabytes", CHAT, b'{"messages": "' + b"x" * 10_000_000 + b'"}', None),
    ("a lone surrogate", TEXT, b'{"prompt": "\\ud800"}', "prompt"),
    ("a NUL", TEXT, b'{"prompt": "a\\u0000b"}', "prompt"),
    ("a surrogate for a name", TEXT, b'{"\\udfff": 1}', None),
    ("an infinite temperature", TEXT, b'{"prompt": "a", "temperature": 1e999}', None),
    (
        "a number beyond all",
        "/v1/responses",
        b'{"input": "", "metadata": {"a": [-1e999]}}',
        "metadata.a[0]",
    ),
    (
        "one in a schema",
        TEXT,
        b'{"prompt": "a", "json_schema": {"minimum": 1e999}}',
        "json_schema.minimum",
    ),
    ("100,000 stops", CHAT, {"messages": HELLO, "stop": ["x"] * 100_000}, "stop"),
    ("a prompt longer than the context", TEXT, text(prompt="word " * 20_000), "prompt"),
    ("an expression that explodes", TEXT, text(regex="(?:a?){2000}a{2000}"), "regex"),
    ("an enormous schema", CHAT, form({"type": "object", "properties": HUGE}), FORM),
    ("an endless schema", CHAT, form(CYCLE), FORM),
    ("a contradiction", CHAT, form(CONTRADICTION), FORM),
    ("a schema that is none", CHAT, form({"type": "strnig"}), FORM),
    ("a deep schema", CHAT, form(DEEP), None),
    ("a choice that is banned", TEXT, text(choice=["hi"], banned_strings=["hi"]), "choice"),
    ("no letter left", TEXT, text(regex="[ab]{3}", banned_strings=["a", "b"]), "regex"),
    ("an end for a text", TEXT, text(grammar="start: <|im_end|>"), "grammar"),
    ("an end in a text", TEXT, text(grammar='start: "a" <|im_end|> "b"'), "grammar"),
    ("a template", "/tokenize", {"messages": HELLO, **KWARGS}, "chat_template_kwargs"),
    ("tokens that are none", "/detokenize", {"tokens": ["a"]}, None),
    ("tokens outside of it", "/detokenize", {"tokens": [5, 99999]}, "tokens[1]"),
    ("nothing to tokenize", "/tokenize", {}, "prompt"),
    ("two things to tokenize", "/tokenize", {"prompt": "a", "content": "b"}, "content"),
]


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
    ("path", "body", "param"), [b[1:] for b in BODIES], ids=[b[0] for b in BODIES]
)
def test_a_bad_body_is_refused_in_time_with_a_reason_and_a_healthy_stream_goes_on(
    server: Running, healthy: list[float], path: str, body: Any, param: str | None
) -> None:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    began, seen, head = time.monotonic(), len(healthy), {"content-type": "application/json"}
    answer = httpx.post(server.url + path, content=data, headers=head, timeout=WAIT)
    assert time.monotonic() - began < IN_TIME
    assert answer.status_code == (413 if len(data) > 9_000_000 else 400), answer.text
    error = answer.json()["error"]
    assert 0 < len(error["message"]) < 1000
    assert param is None or error["param"] == param, error
    times = healthy[seen:]
    gaps = [after - before for before, after in pairwise(times)]
    assert max(gaps, default=0) < IN_TIME
    server.wait_until(lambda: len(healthy) > seen, "the healthy stream stands still")


@pytest.mark.parametrize(
    "fields",
    [
        {"top_k": 10**30, "seed": -(10**30)},
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
    assert server.post(TEXT, text(**fields)).status_code == 200


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
