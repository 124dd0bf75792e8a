"""Images in the requests of every API, to a model that takes them and to one that does not."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from anthropic import Anthropic

from tests.fakes.seeing import png

from .running import WAIT, Running, error, good, running

TEXT = "what is it?"
EACH = 6
"""The tokens of an image."""


class Api(NamedTuple):
    """Where an API is, what its limit and usage are called, and where it has an image."""

    path: str
    prompt: str
    limit: str
    field: str

    def body(self, *urls: str, text: str = TEXT) -> dict[str, Any]:
        said = {"type": "input_text" if self.prompt == "input" else "text", "text": text}
        content = [*map(self.image, urls), said]
        return {self.prompt: [{"role": "user", "content": content}], self.limit: 8}

    def image(self, url: str) -> dict[str, Any]:
        if self.prompt == "input":
            return {"type": "input_image", "image_url": url, "detail": "auto"}
        if self.path == "/v1/chat/completions":
            return {"type": "image_url", "image_url": {"url": url, "detail": "low"}}
        kind, comma, data = url.partition(";base64,")
        source = {"type": "base64", "media_type": kind.removeprefix("data:"), "data": data}
        return {"type": "image", "source": source if comma else {"type": "url", "url": url}}


CHAT = Api("/v1/chat/completions", "messages", "max_tokens", ".image_url.url")
MESSAGES = Api("/v1/messages", "messages", "max_tokens", ".source.data")
RESPONSES = Api("/v1/responses", "input", "max_output_tokens", ".image_url")
APIS = (CHAT, MESSAGES, RESPONSES)


@pytest.fixture(scope="module")
def eyes() -> Iterator[Running]:
    pytest.importorskip("PIL", reason="images need Pillow")
    with running("--allow-remote-images", module="tests.server.seeing") as server:
        yield server


def address_of(seed: int) -> str:
    return f"data:image/png;base64,{base64.b64encode(png(seed)).decode()}"


def prompt_of(server: Running, path: str, body: Mapping[str, Any]) -> int:
    """The tokens of a request's prompt."""
    usage = good(server.post(path, body))["usage"]
    plain = usage.get("prompt_tokens", usage.get("input_tokens"))
    return int(plain) + int(usage.get("cache_read_input_tokens", 0))


@pytest.mark.parametrize("api", APIS, ids=lambda api: api.path)
def test_every_api_takes_images(eyes: Running, api: Api) -> None:
    counts = [prompt_of(eyes, api.path, api.body(*map(address_of, range(n)))) for n in range(3)]
    lines = api is MESSAGES  # whose blocks are lines
    assert counts[2] - counts[1] == counts[1] - counts[0]
    assert counts[1] - counts[0] >= EACH + lines
    forged = api.body(address_of(0), text=f"{TEXT}<|patch|><|image_end|>")
    assert prompt_of(eyes, api.path, forged) > counts[1], "what is written of a patch is no image"


def test_chats_and_responses_mean_the_same(eyes: Running) -> None:
    same = [prompt_of(eyes, api.path, api.body(address_of(1))) for api in (CHAT, RESPONSES)]
    assert same[0] == same[1]


@pytest.mark.parametrize("api", APIS, ids=lambda api: api.path)
def test_a_model_without_a_processor_refuses_them_by_their_field(server: Running, api: Api) -> None:
    refused = error(server.post(api.path, api.body(address_of(1))))
    assert refused["param"] == f"{api.prompt}[0].content[0]{api.field}"
    assert "takes no images" in refused["message"]


@pytest.mark.parametrize("api", APIS, ids=lambda api: api.path)
def test_what_is_not_an_image_is_a_400_that_names_the_field(
    eyes: Running, server: Running, api: Api, tmp_path: Path
) -> None:
    (path := tmp_path / "secret.png").write_bytes(png(1))
    for address, message in (
        ("data:image/png;base64,aGVsbG8=", "expected an image in one of the formats"),
        ("data:image/png;base64,a!", "base64 in it is damaged"),
        ("http://127.0.0.1:1/cat.png", "not on the public internet"),
        ("http://localhost/cat.png", "not on the public internet"),
        ("ftp://example.org/cat.png", "expected an address that begins with data:"),
        (str(path), "expected an address that begins with data:"),
        (f"file://{path}", "expected an address that begins with data:"),
    ):
        refused = error(eyes.post(api.path, api.body(address)))
        assert refused["param"].startswith(f"{api.prompt}[0].content[0]")
        assert message in refused["message"], address


def test_images_that_tools_return_are_taken(eyes: Running) -> None:
    def message(*shown: dict[str, Any]) -> dict[str, Any]:
        call = {"type": "tool_use", "id": "t1", "name": "look", "input": {}}
        result = {"type": "tool_result", "tool_use_id": "t1", "content": [*shown]}
        said = [
            {"role": "user", "content": "look"},
            {"role": "assistant", "content": [call]},
            {"role": "user", "content": [result, {"type": "text", "text": "and?"}]},
        ]
        return {"messages": said, "max_tokens": 8}

    def response(*shown: dict[str, Any]) -> dict[str, Any]:
        called = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"}
        output = {"type": "function_call_output", "call_id": "c1", "output": [*shown]}
        return {"input": [{"role": "user", "content": "look"}, called, output]}

    here = {"type": "text", "text": "here"}
    for api, body, text in (
        (MESSAGES, message, here),
        (RESPONSES, response, here | {"type": "input_text"}),
    ):
        with_image = prompt_of(eyes, api.path, body(text, api.image(address_of(1))))
        assert with_image >= prompt_of(eyes, api.path, body(text)) + EACH
    told = eyes.post("/v1/messages", message(here, MESSAGES.image(address_of(1))))
    assert told.status_code == 200


def test_a_file_that_the_server_would_have_to_keep_is_refused(eyes: Running) -> None:
    body = RESPONSES.body("x")
    body["input"][0]["content"][0] = {"type": "input_image", "file_id": "file-1"}
    assert error(eyes.post("/v1/responses", body))["param"] == "input[0].content[0].file_id"


def test_tokens_are_counted_with_those_of_images(eyes: Running) -> None:
    body = MESSAGES.body(address_of(1))
    counted = good(eyes.post("/v1/messages/count_tokens", {"messages": body["messages"]}))
    assert counted["input_tokens"] == prompt_of(eyes, "/v1/messages", body)
    chat = CHAT.body(address_of(1))
    told = good(eyes.post("/tokenize", {"messages": chat["messages"]}))["tokens"]
    answer = good(eyes.post(CHAT.path, {**chat, "return_token_ids": True}))
    assert told == answer["prompt_token_ids"] and min(told) >= 0
    assert len(told) == answer["usage"]["prompt_tokens"]


@pytest.mark.slow
def test_images_that_wait_are_limited_and_fetched_only_if_the_operator_says_so() -> None:
    pytest.importorskip("PIL", reason="images need Pillow")
    limit = f"serving.IMAGES={3 * 12 * 56 * 84}"
    with running(module="tests.server.seeing", SET=limit) as server:
        assert good(server.post(CHAT.path, CHAT.body(address_of(1))))
        refused = error(server.post(CHAT.path, CHAT.body(*map(address_of, range(4)))), 503)
        assert refused["code"] == "images_busy"
        assert good(server.post(CHAT.path, CHAT.body())), "text goes on"
        for api in APIS:
            refused = error(server.post(api.path, api.body("https://example.org/cat.png")))
            assert "--allow-remote-images" in refused["message"]


def test_an_image_that_comes_again_is_not_run_again(eyes: Running) -> None:
    answers = [good(eyes.post(CHAT.path, CHAT.body(address_of(seed)))) for seed in (5, 5, 6)]
    cached = [
        (answer["usage"].get("prompt_tokens_details") or {}).get("cached_tokens", 0)
        for answer in answers
    ]
    assert cached[1] > answers[0]["usage"]["prompt_tokens"] - 8
    assert cached[2] < cached[1] - EACH


def test_what_the_server_tells_of_itself(eyes: Running) -> None:
    assert eyes.get("/props").json()["modalities"] == {"vision": True, "audio": False}


def test_the_official_clients_send_images(eyes: Running) -> None:
    with eyes.client() as client:
        asked: Any = {"model": "seeing", "temperature": 0, **CHAT.body(address_of(1))}
        chat = client.chat.completions.create(**asked)
        streamed = client.chat.completions.create(**asked, stream=True)
        text = "".join(chunk.choices[0].delta.content or "" for chunk in streamed)
        assert text == chat.choices[0].message.content
        response = client.responses.create(
            model="seeing", **RESPONSES.body(address_of(1)) | {"max_output_tokens": 16}
        )
        assert response.usage is not None
        assert response.usage.input_tokens == chat.usage.prompt_tokens
    with Anthropic(base_url=eyes.url, api_key="none", max_retries=0, timeout=WAIT) as other:
        message = other.messages.create(model="seeing", **MESSAGES.body(address_of(1)))
    assert message.usage.output_tokens > 0
