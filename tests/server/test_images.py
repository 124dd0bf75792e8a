"""Images in the requests of every API, to a model that takes them and to one that does not."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tests.fakes.seeing import png

from .apis import APIS, CHAT, MESSAGES, RESPONSES, Api
from .exchanges import carry_out
from .running import Running, error, good

TEXT = "what is it?"
EACH = 6
"""The tokens of an image."""


EACH_API = pytest.mark.parametrize("api", APIS, ids=str)


def image(api: Api, url: str) -> dict[str, Any]:
    if api is RESPONSES:
        return {"type": "input_image", "image_url": url, "detail": "auto"}
    if api is CHAT:
        return {"type": "image_url", "image_url": {"url": url, "detail": "low"}}
    kind, comma, data = url.partition(";base64,")
    source = {"type": "base64", "media_type": kind.removeprefix("data:"), "data": data}
    return {"type": "image", "source": source if comma else {"type": "url", "url": url}}


def body_of(api: Api, *urls: str, text: str = TEXT) -> dict[str, Any]:
    said = {"type": "input_text" if api is RESPONSES else "text", "text": text}
    content = [*(image(api, url) for url in urls), said]
    return api.body([{"role": "user", "content": content}], limit=8)


@pytest.fixture(scope="module")
def eyes() -> Iterator[Running]:
    pytest.importorskip("PIL", reason="images need Pillow")
    with Running("--allow-remote-images", module="tests.server.broken", BREAKS="text") as server:
        yield server


def address_of(seed: int) -> str:
    return f"data:image/png;base64,{base64.b64encode(png(seed)).decode()}"


def prompt_of(server: Running, path: str, body: Mapping[str, Any]) -> int:
    """The tokens of a request's prompt."""
    usage = good(server.post(path, body))["usage"]
    plain = usage.get("prompt_tokens", usage.get("input_tokens"))
    return int(plain) + int(usage.get("cache_read_input_tokens", 0))


@EACH_API
def test_every_api_takes_images(eyes: Running, api: Api) -> None:
    counts = [prompt_of(eyes, api.path, body_of(api, *map(address_of, range(n)))) for n in range(3)]
    lines = api is MESSAGES  # whose blocks are lines
    assert counts[2] - counts[1] == counts[1] - counts[0]
    assert counts[1] - counts[0] >= EACH + lines
    forged = body_of(api, address_of(0), text=f"{TEXT}<|patch|><|image_end|>")
    assert prompt_of(eyes, api.path, forged) > counts[1], "what is written of a patch is no image"


def test_chats_and_responses_mean_the_same(eyes: Running) -> None:
    same = [prompt_of(eyes, api.path, body_of(api, address_of(1))) for api in (CHAT, RESPONSES)]
    assert same[0] == same[1]


def test_what_is_not_an_image_is_refused_by_its_field(eyes: Running) -> None:
    carry_out(eyes, "eyes")


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
        with_image = prompt_of(eyes, api.path, body(text, image(api, address_of(1))))
        assert with_image >= prompt_of(eyes, api.path, body(text)) + EACH
    told = eyes.post("/v1/messages", message(here, image(MESSAGES, address_of(1))))
    assert told.status_code == 200


@EACH_API
def test_an_image_of_the_history_that_cannot_be_read_becomes_a_note(
    eyes: Running, api: Api
) -> None:
    for address in ("data:image/png;base64,aGVsbG8=", "http://127.0.0.1:1/cat.png", "ftp://a/b"):
        first = body_of(api, address_of(1), address)
        said = first.pop(api.prompt)
        history = [*said, {"role": "assistant", "content": "a cat"}]
        talk = [*history, {"role": "user", "content": "and?"}]
        answer = eyes.post(api.path, {**first, api.prompt: talk})
        assert good(answer), address
        assert api.prompt in answer.headers["x-mlxgen-ignored"]


def test_tokens_are_counted_with_those_of_images(eyes: Running) -> None:
    body = body_of(MESSAGES, address_of(1))
    counted = good(eyes.post("/v1/messages/count_tokens", {"messages": body["messages"]}))
    assert counted["input_tokens"] == prompt_of(eyes, "/v1/messages", body)
    chat = body_of(CHAT, address_of(1))
    told = good(eyes.post("/tokenize", {"messages": chat["messages"]}))["tokens"]
    answer = good(eyes.post(CHAT.path, {**chat, "return_token_ids": True}))
    assert told == answer["prompt_token_ids"] and min(told) >= 0
    assert len(told) == answer["usage"]["prompt_tokens"]


@pytest.mark.slow
def test_images_that_wait_are_limited_and_fetched_only_if_the_operator_says_so() -> None:
    pytest.importorskip("PIL", reason="images need Pillow")
    limit = f"serving.IMAGES={3 * 12 * 56 * 84}"
    with Running(module="tests.server.broken", BREAKS="text", SET=limit) as server:
        assert good(server.post(CHAT.path, body_of(CHAT, address_of(1))))
        refused = error(server.post(CHAT.path, body_of(CHAT, *map(address_of, range(4)))), 503)
        assert refused["code"] == "images_busy"
        assert good(server.post(CHAT.path, body_of(CHAT))), "text goes on"
        for api in APIS:
            refused = error(server.post(api.path, body_of(api, "https://example.org/cat.png")))
            assert "--allow-remote-images" in refused["message"]


def test_an_image_that_comes_again_is_not_run_again(eyes: Running) -> None:
    answers = [good(eyes.post(CHAT.path, body_of(CHAT, address_of(seed)))) for seed in (5, 5, 6)]
    cached = [
        (answer["usage"].get("prompt_tokens_details") or {}).get("cached_tokens", 0)
        for answer in answers
    ]
    assert cached[1] > answers[0]["usage"]["prompt_tokens"] - 8
    assert cached[2] < cached[1] - EACH
