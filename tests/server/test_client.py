"""The protocol, as the official client sees it."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from .running import ASK, Running, events, question

if TYPE_CHECKING:
    from openai import OpenAI

STORY = "Once upon a time"
PLAIN: Any = {"chat_template_kwargs": {"enable_thinking": False}}
USER: Any = [{"role": "user", "content": ASK}]


def chat(client: OpenAI, **options: Any) -> Any:
    options = {"model": "demo", "messages": USER, "temperature": 0, "extra_body": PLAIN} | options
    return client.chat.completions.create(**options)


def complete(client: OpenAI, **options: Any) -> Any:
    given: Any = {"model": "demo", "prompt": STORY, "temperature": 0, "max_tokens": 40} | options
    return client.completions.create(**given)


def test_a_streamed_chat_adds_up_to_the_complete_one(client: OpenAI) -> None:
    whole = chat(client, extra_body={})  # with thinking
    assert whole.id.startswith("chatcmpl-") and whole.object == "chat.completion"
    assert whole.choices[0].message.content == "The capital of France is Paris."
    assert type(whole).model_validate(whole.model_dump()) == whole
    chunks = list(chat(client, extra_body={}, stream=True, stream_options={"include_usage": True}))
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    assert deltas[0].role == "assistant"
    assert "".join(d.content or "" for d in deltas) == whole.choices[0].message.content
    thought = "".join(getattr(d, "reasoning_content", None) or "" for d in deltas)
    assert thought == whole.choices[0].message.reasoning_content
    assert len({chunk.id for chunk in chunks}) == 1 and chunks[-1].choices == []
    used = chunks[-1].usage
    assert used.completion_tokens == whole.usage.completion_tokens
    assert used.total_tokens == used.prompt_tokens + used.completion_tokens


def test_a_large_answer_is_written_whole(server: Running) -> None:
    greedy = {"prompt": STORY, "n": 4, "logprobs": 20, "max_tokens": 60, "ignore_eos": True}
    choices = server.post("/v1/completions", greedy | {"temperature": 0}).json()["choices"]
    reports = [choice["logprobs"] for choice in choices]
    assert [len(report["tokens"]) for report in reports] == [60] * 4
    assert reports[0]["tokens"] == reports[3]["tokens"]
    assert reports[0]["token_logprobs"] == pytest.approx(reports[3]["token_logprobs"], abs=1e-3)


def test_errors_are_the_clients_exceptions_and_name_the_field(client: OpenAI) -> None:
    import openai

    assert chat(client, model="gpt-9", max_tokens=1).model == "gpt-9"
    with pytest.raises(openai.BadRequestError) as caught:
        chat(client, temperature=-1)
    assert caught.value.param == "temperature"
    with pytest.raises(openai.BadRequestError) as caught:
        chat(client, extra_body={"stream_options": {"include": 1}})
    assert caught.value.param == "stream_options.include"
    with pytest.raises(openai.BadRequestError) as caught:
        chat(client, extra_body={"regex": "(a"})
    assert caught.value.param == "regex"


def test_tokens_and_text_are_each_others_inverse(server: Running) -> None:
    text = "  Hé, 你 😊\n"
    answer = server.post("/tokenize", {"content": text, "add_special": False}).json()
    assert answer["count"] == len(answer["tokens"])
    back = server.post("/detokenize", {"tokens": answer["tokens"]}).json()
    assert back["content"] == back["prompt"] == text
    pieces = server.post("/tokenize", {"prompt": "ab é", "with_pieces": True}).json()["tokens"]
    raw = b"".join(
        bytes(p["piece"]) if isinstance(p["piece"], list) else p["piece"].encode() for p in pieces
    )
    assert raw == "ab é".encode()
    given = {"tokens": [piece["id"] for piece in pieces], "with_pieces": True}
    assert server.post("/detokenize", given).json()["tokens"] == pieces
    ids = server.post("/tokenize", {"messages": question()["messages"]}).json()["tokens"]
    asked = server.chat({"max_tokens": 1}).json()["usage"]["prompt_tokens"]
    assert len(ids) == asked


def test_text_that_continues_is_tokenized_without_a_beginning(server: Running) -> None:
    def pieces(text: str) -> list[Any]:
        body = {"content": text, "continues": True, "with_pieces": True}
        return [token["piece"] for token in server.post("/tokenize", body).json()["tokens"]]

    assert "".join(pieces("Hello there")) == "Hello there"
    assert pieces("<|im_end|>") == ["<|im_end|>"]
    mixed = pieces("a<|im_end|>")
    assert "".join(mixed) == "a<|im_end|>" and "<|im_end|>" not in mixed
    assert pieces("") == []


LONG: Any = {"messages": [{"role": "user", "content": "Tell me of the fox. " * 40}]}


def test_timings_come_with_each_event_and_with_a_whole_answer(server: Running) -> None:
    body = {**LONG, "timings_per_token": True, "max_tokens": 6, "ignore_eos": True}
    whole = server.chat(body).json()
    with server.stream("/v1/chat/completions", body) as lines:
        first, *rest = events(lines)
    assert rest[-1]["choices"][0]["finish_reason"] == "length" and "usage" not in first
    assert "timings" not in first  # which says who speaks, and nothing else
    counts = [event["timings"]["predicted_n"] for event in rest]
    assert counts == sorted(counts) and counts[-1] == whole["usage"]["completion_tokens"] == 6
    assert all(event["timings"]["queued_ms"] >= 0 for event in rest)
    for found in (whole["timings"], rest[-1]["timings"]):
        assert found["prompt_n"] + found["cache_n"] == whole["usage"]["prompt_tokens"]
        for name, tokens in (("prompt", found["prompt_n"]), ("predicted", 5)):
            rate = 1e3 * tokens / found[f"{name}_ms"]
            assert found[f"{name}_per_second"] == pytest.approx(rate, rel=0.05)
    assert rest[-1]["timings"]["cache_n"] > 0  # the second time
    plain = {**body, "timings_per_token": False}
    assert "timings" not in server.chat(plain).json()


def test_small_endpoints_that_clients_of_local_servers_probe(server: Running) -> None:
    props = server.get("/props").json()
    slots = server.get("/slots").json()
    assert [slot["id"] for slot in slots] == list(range(8)) == list(range(props["total_slots"]))
    assert all(isinstance(slot["is_processing"], bool) for slot in slots)
    settings = props["default_generation_settings"]
    assert {slot["n_ctx"] for slot in slots} == {props["n_ctx"]} == {settings["n_ctx"]}
    assert server.get("/slots?fail_on_no_slot=1").status_code == 200
    params = settings["params"]
    assert params["repeat_penalty"] == params["repetition_penalty"] == 1.0
    assert (params["n_predict"], params["temperature"], params["dry_multiplier"]) == (-1, 0, 0)
    assert params["samplers"][-2:] == ["temperature", "adaptive_p"]
    assert (props["model_alias"], props["sampling_defaults"]) == ("demo", "model")
    assert "enable_thinking" in props["chat_template"] and props["eos_token"] == "<|im_end|>"
    assert props["build_info"].startswith("mlxgen ") and not props["is_sleeping"]
    assert props["modalities"].keys() >= {"vision", "audio"}


def test_the_clients_own_request_id_comes_back(server: Running) -> None:
    for given, same in (("mine-1", True), ("x" * 200, False)):
        answer = server.chat({"max_tokens": 1, "stream": True}, headers={"X-Request-Id": given})
        assert (answer.headers["x-request-id"] == given) is same
        assert len(answer.headers["x-request-id"]) >= (6 if same else 16)
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers["cache-control"] == "no-cache"
    refused = server.chat({"n": 0}, headers={"X-Request-Id": "mine-2"})
    assert (refused.status_code, refused.headers["x-request-id"]) == (400, "mine-2")


def test_llama_cpps_completions_have_probabilities_timings_and_progress_when_asked_for(
    server: Running,
) -> None:
    body: dict[str, Any] = {"prompt": STORY, "n_predict": 12, "temperature": 0}
    whole = server.post("/completion", {**body, "n_probs": 3}).json()
    first = whole["completion_probabilities"][0]
    assert len(first["top_logprobs"]) == 3 and first["id"] == first["top_logprobs"][0]["id"]
    assert (whole["tokens_predicted"], whole["timings"]["predicted_n"]) == (12, 12)
    told = {"n_probs": 1, "timings_per_token": True, "return_progress": True}
    with server.stream("/completion", {**body, **told}) as lines:
        found = [line for line in lines if line]
    assert all(line.startswith("data: {") for line in found)  # and nothing says [DONE]
    parts = [json.loads(line.removeprefix("data: ")) for line in found]
    progress = [event for event in parts if "prompt_progress" in event]
    assert parts[: len(progress)] == progress != []
    for event in parts[len(progress) : -1]:
        assert event["timings"] and len(event["completion_probabilities"]) == len(event["tokens"])
    assert "".join(event["content"] for event in parts) == whole["content"]
    assert "completion_probabilities" not in server.post("/completion", body).json()


def test_the_log_says_how_much_came_from_the_prefix_cache(server: Running) -> None:
    body = {"prompt": "The log of a server says it. " * 8, "max_tokens": 2, "ignore_eos": True}
    answers = [server.post("/v1/completions", body).json() for _ in range(2)]
    cached = answers[1]["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached > 0
    line = re.compile(rf" id={answers[1]['id'].removeprefix('cmpl-')} .* cached={cached} ")
    server.wait_until(lambda: any(map(line.search, server.log)), "no such line")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", question("Tell me a story about a fox.")),
        ("/v1/completions", {"prompt": "Once upon a time", "temperature": 0}),
        ("/v1/completions", {"prompt": ["Once", "Two"], "temperature": 0}),
    ],
)
def test_each_of_several_answers_is_drafted_from_a_prediction(
    server: Running, path: str, body: dict[str, Any]
) -> None:
    whole = {**body, "n": 3, "seed": 5, "max_tokens": 24}

    def said(**more: Any) -> list[Any]:
        answer = server.post(path, {**whole, **more})
        assert answer.status_code == 200, answer.text
        return [choice.get("message") or choice["text"] for choice in answer.json()["choices"]]

    texts = said()
    told = [each if isinstance(each, str) else each["content"] for each in texts]
    assert said(prediction={"type": "content", "content": told[0]}) == texts
