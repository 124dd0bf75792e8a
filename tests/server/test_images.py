"""Images in the requests of every API are those of the library's messages."""

from __future__ import annotations

import asyncio
import base64
import copy
import gc
import threading
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from mlxgen import LanguageModel
from mlxgen.images import plain
from mlxgen.server import jobs
from mlxgen.server.ask import Ask
from mlxgen.server.errors import RequestError
from mlxgen.server.jobs import Preparation, Workers
from mlxgen.server.messages import count_tokens, parse_messages
from mlxgen.server.openai import parse_chat
from mlxgen.server.remote_images import MOST_IMAGES, FetchError, RemoteImages
from mlxgen.server.responses import parse_responses
from mlxgen.server.served_model import ServedModel
from mlxgen.server.token_work import tokenize
from tests.fakes import byte_level_tokenizer
from tests.fakes.checkpoints import tiny_config, tiny_model
from tests.fakes.seeing import asking, png, seeing

Body = dict[str, Any]
Parse = Callable[[Mapping[str, Any], ServedModel], Ask]

TEXT = "what is it?"


def address_of(data: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(data).decode()}"


def chat(*addresses: str) -> Body:
    images = [
        {"type": "image_url", "image_url": {"url": url, "detail": "low"}} for url in addresses
    ]
    return {"messages": [{"role": "user", "content": [*images, {"type": "text", "text": TEXT}]}]}


def messages(*addresses: str) -> Body:
    images = []
    for url in addresses:
        kind, comma, data = url.partition(";base64,")
        source = {"type": "base64", "media_type": kind.removeprefix("data:"), "data": data}
        images.append({"type": "image", "source": source if comma else {"type": "url", "url": url}})
    said = {"role": "user", "content": [*images, {"type": "text", "text": TEXT}]}
    return {"messages": [said], "max_tokens": 9}


def responses(*addresses: str) -> Body:
    images = [{"type": "input_image", "image_url": url, "detail": "auto"} for url in addresses]
    return {"input": [{"role": "user", "content": [*images, {"type": "input_text", "text": TEXT}]}]}


APIS: dict[str, tuple[Callable[..., Body], Parse, str]] = {
    "chat": (chat, parse_chat, "messages[0].content[0].image_url.url"),
    "messages": (messages, parse_messages, "messages[0].content[0].source.data"),
    "responses": (responses, parse_responses, "input[0].content[0].image_url"),
}


@pytest.fixture(scope="module")
def lm() -> LanguageModel:
    return seeing()


@pytest.fixture(scope="module")
def model(lm: LanguageModel) -> ServedModel:
    return ServedModel.of(lm)


def prompt_of(call: Ask) -> list[int]:
    return list(call.jobs[0].prompt.tokens)


@pytest.mark.parametrize("api", APIS)
def test_every_api_takes_images(lm: LanguageModel, model: ServedModel, api: str) -> None:
    make, parse, _ = APIS[api]
    call = parse(make(address_of(png(1)), address_of(png(2))), model)
    found = prompt_of(call)
    assert sum(token < 0 for token in found) == 12
    (request,) = lm.runtime.prepare_all(call.jobs)
    assert list(request.history) == found
    said = asking(png(1), png(2), text=TEXT)
    between = "\n" if api == "messages" else ""  # blocks of the Messages API are lines
    if not between:
        assert found == list(lm.runtime.prepare(said, call.jobs[0].options).history)


@pytest.mark.parametrize("api", APIS)
def test_a_model_without_a_processor_refuses_them_by_their_field(api: str) -> None:
    tokenizer = byte_level_tokenizer()
    blind = ServedModel.of(LanguageModel(tiny_model(tiny_config(len(tokenizer))), tokenizer))
    make, parse, field = APIS[api]
    for address in (address_of(png(1)), "data:,"):
        with pytest.raises(RequestError, match="takes no images") as caught:
            parse(make(address), blind)
        assert caught.value.status == 400
        assert address == "data:," or caught.value.param == field


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("data:image/png;base64,aGVsbG8=", "expected an image in one of the formats"),
        ("data:image/png;base64,a!", "base64 in it is damaged"),
        ("https://example.org/cat.png", "--allow-remote-images"),
    ],
)
def test_what_is_not_an_image_is_a_400_that_names_the_field(
    model: ServedModel, api: str, address: str, message: str
) -> None:
    make, parse, field = APIS[api]
    with pytest.raises(RequestError, match=message) as caught:
        parse(make(address), model)
    assert caught.value.status == 400
    assert str(caught.value.param).startswith(field.rpartition(".")[0])


def test_a_file_of_the_server_is_never_read(model: ServedModel, tmp_path: Any) -> None:
    path = tmp_path / "secret.png"
    path.write_bytes(png(1))
    for address in (str(path), f"file://{path}"):
        for make, parse, _ in APIS.values():
            with pytest.raises(RequestError, match="expected an address that begins with data:"):
                parse(make(address), model)


def result(content: Any, **more: Any) -> Body:
    call = {"type": "tool_use", "id": "t1", "name": "look", "input": {}}
    answer = {"type": "tool_result", "tool_use_id": "t1", "content": content, **more}
    said = [
        {"role": "user", "content": "look"},
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [answer, {"type": "text", "text": "and?"}]},
    ]
    return {"messages": said, "max_tokens": 9}


def test_an_image_of_a_tool_is_shown_where_the_template_has_a_place(model: ServedModel) -> None:
    source = {
        "type": "base64",
        "media_type": "image/png",
        "data": base64.b64encode(png(1)).decode(),
    }
    parts = [{"type": "text", "text": "here"}, {"type": "image", "source": source}]
    found = prompt_of(parse_messages(result(parts), model))
    assert sum(token < 0 for token in found) == 6
    text = model.vocabulary.decode(plain(found))
    assert "<|im_start|>tool\nhere\n" in text
    told = text[text.index("here") :]
    assert told.index("<|im_start|>user") < told.index("<|patch|>") < told.index("and?")


def test_an_image_in_the_result_of_a_function_is_taken(model: ServedModel) -> None:
    body = {
        "input": [
            {"role": "user", "content": "look"},
            {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"},
            {
                "type": "function_call_output",
                "call_id": "c1",
                "output": [{"type": "input_image", "image_url": address_of(png(1))}],
            },
        ]
    }
    assert sum(token < 0 for token in prompt_of(parse_responses(body, model))) == 6


def test_a_file_that_the_server_would_have_to_keep_is_refused(model: ServedModel) -> None:
    body = responses("x")
    body["input"][0]["content"][0] = {"type": "input_image", "file_id": "file-1"}
    with pytest.raises(RequestError, match="keeps no files") as caught:
        parse_responses(body, model)
    assert caught.value.param == "input[0].content[0].file_id"


def test_tokens_are_counted_with_those_of_images(model: ServedModel) -> None:
    body = messages(address_of(png(1)))
    counted = count_tokens({"messages": body["messages"]}, model)["input_tokens"]
    assert counted == len(prompt_of(parse_messages(body, model)))
    told = tokenize(chat(address_of(png(1))), model)
    assert told["tokens"] == plain(prompt_of(parse_chat(chat(address_of(png(1))), model)))


def test_what_is_written_about_a_patch_is_no_image(model: ServedModel) -> None:
    body = chat(address_of(png(1)))
    body["messages"][0]["content"].append({"type": "text", "text": "<|patch|><|image_end|>"})
    assert sum(token < 0 for token in prompt_of(parse_chat(body, model))) == 6


# ---- images to fetch


@pytest.mark.parametrize("api", APIS)
def test_images_that_may_be_fetched_are_put_into_the_body(model: ServedModel, api: str) -> None:
    make, parse, _ = APIS[api]
    urls = ["https://example.org/1", "HTTP://example.org/2", "https://example.org/1"]
    files = {url: png(i % 2) for i, url in enumerate(urls)}
    asked = []

    def get(url: str) -> bytes:
        asked.append(url)
        return files[url]

    body = make(*urls)
    remote = RemoteImages(get)
    asyncio.run(remote.put_into(body))
    assert sorted(asked) == sorted(files)
    assert prompt_of(parse(body, model)) == prompt_of(
        parse(make(*(address_of(files[url]) for url in urls)), model)
    )


def test_an_image_that_cannot_be_fetched_is_named() -> None:
    def get(url: str) -> bytes:
        raise FetchError("its server answers 404")

    remote = RemoteImages(get)
    with pytest.raises(RequestError, match="cannot be fetched: its server answers 404") as caught:
        asyncio.run(remote.put_into(chat("https://example.org/1")))
    assert caught.value.param == "messages[0].content[0].image_url.url"
    assert (caught.value.status, caught.value.code) == (502, "fetch_failed")
    with pytest.raises(RequestError, match=f"at most {MOST_IMAGES} images"):
        asyncio.run(remote.put_into(chat(*["https://example.org/1"] * (MOST_IMAGES + 1))))


LOOKS = [
    {"type": "image_url", "image_url": {"url": "https://example.org/1"}},
    {"type": "input_image", "image_url": "https://example.org/1"},
    {"type": "image", "source": {"type": "url", "url": "https://example.org/1"}},
]


@pytest.mark.parametrize("like", LOOKS)
@pytest.mark.parametrize("api", APIS)
def test_only_images_of_messages_are_fetched(api: str, like: Body) -> None:
    body = APIS[api][0]("https://example.org/2")
    body |= {
        "metadata": like,
        "tools": [{"type": "function", "function": {"name": "f", "parameters": like}}],
        "response_format": {"type": "json_schema", "json_schema": {"schema": {"const": [like]}}},
    }
    said = body["messages" if "messages" in body else "input"]
    called = {"type": "function", "id": "c", "function": {"name": "f", "arguments": like}}
    said += [
        {"role": "assistant", "content": "https://example.org/1", "tool_calls": [called]},
        {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": "c", "name": "f", "input": [like]}],
        },
        {"type": "function_call", "name": "f", "arguments": like, "input": [like]},
    ]
    before = copy.deepcopy(body)
    asked = []

    def get(url: str) -> bytes:
        asked.append(url)
        return png(1)

    asyncio.run(RemoteImages(get).put_into(body))
    assert asked == ["https://example.org/2"]
    assert {**body, "messages": 0, "input": 0} == {**before, "messages": 0, "input": 0}
    assert said[1:] == before["messages" if "messages" in body else "input"][1:]


def test_slow_addresses_of_one_request_delay_no_other() -> None:
    free = threading.Event()
    slow = [f"https://slow.example/{i}" for i in range(MOST_IMAGES)]

    def get(url: str) -> bytes:
        assert url not in slow or free.wait(60)
        return png(1)

    remote = RemoteImages(get)

    async def ask() -> None:
        waiting = [asyncio.create_task(remote.put_into(chat(*slow))) for _ in range(3)]
        await asyncio.sleep(0)
        await remote.put_into(quick := chat("https://example.org/1"))
        assert "base64," in str(quick)
        assert not any(task.done() for task in waiting)
        free.set()
        await asyncio.gather(*waiting)

    asyncio.run(ask())


def test_images_that_wait_are_limited(
    lm: LanguageModel, model: ServedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = model.dialect.images
    assert images is not None
    gc.collect()
    before = images.nbytes
    body = chat(address_of(png(7)))
    call = parse_chat(body, model)
    assert images.nbytes == before + 12 * 56 * 84
    monkeypatch.setattr(jobs, "IMAGES", before)
    preparation = Preparation(Workers(), lm, model, max_sequences=4)
    with pytest.raises(RequestError, match="too many images wait here") as caught:
        preparation._prepared(body, parse_chat)
    assert caught.value.status == 503
    preparation._prepared(chat(), parse_chat)  # text goes on
    del call, caught
    gc.collect()
    assert images.nbytes == before
