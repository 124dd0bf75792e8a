"""A server whose model takes images, asked by the official clients."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import pytest
from anthropic import Anthropic

from tests.fakes.seeing import png

from .running import WAIT, Running, running

SAYS: dict[str, Any] = {"max_tokens": 8}


@pytest.fixture(scope="module")
def eyes() -> Iterator[Running]:
    pytest.importorskip("PIL", reason="images need Pillow")
    with running("--allow-remote-images", module="tests.server.seeing") as server:
        yield server


def address_of(seed: int) -> str:
    return f"data:image/png;base64,{base64.b64encode(png(seed)).decode()}"


def asked(seed: int) -> list[Any]:
    parts = [
        {"type": "image_url", "image_url": {"url": address_of(seed)}},
        {"type": "text", "text": "what is it?"},
    ]
    return [{"role": "user", "content": parts}]


def test_the_official_clients_send_images(eyes: Running) -> None:
    with eyes.client() as client:
        chat = client.chat.completions.create(
            model="seeing", messages=asked(1), temperature=0, **SAYS
        )
        streamed = client.chat.completions.create(
            model="seeing", messages=asked(1), temperature=0, stream=True, **SAYS
        )
        text = "".join(chunk.choices[0].delta.content or "" for chunk in streamed)
        assert text == chat.choices[0].message.content
        part: Any = {"type": "input_image", "image_url": address_of(1), "detail": "auto"}
        said: Any = [part, {"type": "input_text", "text": "what is it?"}]
        response = client.responses.create(
            model="seeing",
            input=[{"role": "user", "content": said}],
            temperature=0,
            max_output_tokens=16,
        )
        assert response.usage is not None
        assert response.usage.input_tokens == chat.usage.prompt_tokens
    source: Any = {
        "type": "base64",
        "media_type": "image/png",
        "data": base64.b64encode(png(1)).decode(),
    }
    with Anthropic(base_url=eyes.url, api_key="none", max_retries=0, timeout=WAIT) as client:
        blocks: Any = [{"type": "image", "source": source}, {"type": "text", "text": "what is it?"}]
        message = client.messages.create(
            model="seeing", max_tokens=8, messages=[{"role": "user", "content": blocks}]
        )
        counted = client.messages.count_tokens(
            model="seeing", messages=[{"role": "user", "content": blocks}]
        )
    usage = message.usage
    assert usage.input_tokens + (usage.cache_read_input_tokens or 0) == counted.input_tokens


def test_an_image_that_comes_again_is_not_run_again(eyes: Running) -> None:
    first = eyes.post("/v1/chat/completions", {"messages": asked(5), **SAYS}).json()
    again = eyes.post("/v1/chat/completions", {"messages": asked(5), **SAYS}).json()
    other = eyes.post("/v1/chat/completions", {"messages": asked(6), **SAYS}).json()
    cached = [
        (answer["usage"].get("prompt_tokens_details") or {}).get("cached_tokens", 0)
        for answer in (again, other)
    ]
    assert cached[0] > first["usage"]["prompt_tokens"] - 8
    assert cached[1] < cached[0] - 6


def test_what_the_server_tells_of_itself(eyes: Running) -> None:
    assert eyes.get("/props").json()["modalities"] == {"vision": True, "audio": False}
    body = {"messages": asked(1), "return_token_ids": True, **SAYS}
    answer = eyes.post("/v1/chat/completions", body).json()
    ids = answer["prompt_token_ids"]
    assert all(token >= 0 for token in ids) and len(ids) == answer["usage"]["prompt_tokens"]


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("http://127.0.0.1:1/cat.png", "not on the public internet"),
        ("http://localhost/cat.png", "not on the public internet"),
        ("ftp://example.org/cat.png", "expected an address that begins with data:"),
    ],
)
def test_nothing_inside_the_network_is_fetched(eyes: Running, address: str, message: str) -> None:
    messages = asked(1)
    messages[0]["content"][0]["image_url"]["url"] = address
    for path in ("/v1/chat/completions", "/tokenize"):
        answer = eyes.post(path, {"messages": messages})
        assert answer.status_code == 400
        error = answer.json()["error"]
        assert error["param"] == "messages[0].content[0].image_url.url"
        assert message in error["message"]
