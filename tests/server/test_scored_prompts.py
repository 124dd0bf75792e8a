"""Prompts come back with their log-probabilities, as evaluators ask for them."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import pytest

import mlxgen
from mlxgen import LanguageModel

from .running import Running, events, question

PATH = "/v1/completions"
TEXT = "The capital of France is Paris. The fox said \u201chello\u201d 😊."


@pytest.fixture(scope="module")
def lm() -> LanguageModel:
    return mlxgen.load()


def complete(server: Running, **fields: Any) -> dict[str, Any]:
    answer: dict[str, Any] = server.post(PATH, {"temperature": 0, **fields}).json()
    return answer


def reference(lm: LanguageModel, tokens: list[int]) -> Any:
    """The log-probability of each token but the first, about."""
    logits = lm.model(mx.array([tokens]))[0, :-1].astype(mx.float32)
    logprobs = np.array(logits - mx.logsumexp(logits, axis=-1, keepdims=True))
    told = [float(row[token]) for row, token in zip(logprobs, tokens[1:], strict=True)]
    return pytest.approx(told, abs=1e-3)


@pytest.mark.parametrize("as_ids", [False, True])
def test_an_echo_has_the_log_probabilities_of_the_prompt(
    server: Running, lm: LanguageModel, as_ids: bool
) -> None:
    ids = lm.vocabulary.encode(TEXT)
    for budget in (0, 1, 5):
        fields = {"echo": True, "logprobs": 2, "max_tokens": budget}
        answer = complete(server, prompt=ids if as_ids else TEXT, **fields)
        (choice,) = answer["choices"]
        lists = choice["logprobs"]
        count = len(lists["tokens"])
        assert {len(values) for values in lists.values()} == {count}
        assert answer["usage"]["completion_tokens"] == budget and count <= len(ids) + budget
        assert "".join(lists["tokens"]) == choice["text"] and choice["text"].startswith(TEXT)
        assert lists["token_logprobs"][0] is None and lists["top_logprobs"][0] is None
        assert lists["token_logprobs"][1 : len(ids)] == reference(lm, ids)
        for at, token in zip(lists["text_offset"], lists["tokens"], strict=True):
            assert choice["text"][at : at + len(token)] == token
        assert choice["finish_reason"] == "length"


def test_an_end_token_is_counted_where_evaluators_leave_out_what_was_generated(
    server: Running, lm: LanguageModel
) -> None:
    # they sum token_logprobs[context:-1] with max_tokens 1, whatever that one token is
    (eos, *_) = lm.vocabulary.eos
    ids = lm.vocabulary.encode("The capital of France is Paris.")
    body = {"prompt": ids, "max_tokens": 1, "logprobs": 1, "echo": True}
    for bias in (100.0, -100.0):
        (choice,) = complete(server, **body, logit_bias={str(eos): bias})["choices"]
        lists = choice["logprobs"]
        assert {len(values) for values in lists.values()} == {len(ids) + 1}
        assert lists["token_logprobs"][1:-1] == reference(lm, ids)
        assert "".join(lists["tokens"]) == choice["text"]


def test_a_streamed_echo_says_the_same(server: Running) -> None:
    body = {"prompt": TEXT, "echo": True, "logprobs": 1, "max_tokens": 4, "temperature": 0}
    (whole,) = complete(server, **body)["choices"]
    with server.stream(PATH, body) as lines:
        choices = [choice for event in events(lines) for choice in event["choices"]]
    assert "".join(choice["text"] for choice in choices) == whole["text"]
    for name, values in whole["logprobs"].items():
        streamed = [v for choice in choices for v in (choice["logprobs"] or {}).get(name, [])]
        if name == "token_logprobs":
            assert streamed == pytest.approx(values, abs=1e-3)
        elif name == "top_logprobs":  # drafts take other passes each time
            for tops, others in zip(streamed, values, strict=True):
                assert tops == (others and pytest.approx(others, abs=1e-3))
        else:
            assert streamed == values


def test_prompt_logprobs_are_by_token_id(server: Running, lm: LanguageModel) -> None:
    ids = lm.vocabulary.encode(TEXT)
    body = {"prompt": TEXT, "prompt_logprobs": 1, "max_tokens": 1, "return_token_ids": True}
    (choice,) = complete(server, **body)["choices"]
    assert choice["prompt_token_ids"] == ids and choice["logprobs"] is None
    first, *entries = choice["prompt_logprobs"]
    assert first is None
    own = [entry[str(token)] for token, entry in zip(ids[1:], entries, strict=True)]
    assert [each["logprob"] for each in own] == reference(lm, ids)
    assert all(each["decoded_token"] for each in own)
    assert all(1 in {other["rank"] for other in entry.values()} for entry in entries)


def test_a_chats_prompt_is_scored_as_well(server: Running) -> None:
    asked = question("Hello", max_tokens=1, prompt_logprobs=0, return_token_ids=True)
    answer = server.chat(asked).json()
    assert len(answer["prompt_logprobs"]) == len(answer["prompt_token_ids"])
    assert all(len(entry) == 1 for entry in answer["prompt_logprobs"][1:])


def test_a_healed_prompt_has_log_probabilities_of_what_is_new(server: Running) -> None:
    body = {"prompt": "Once upon a ti", "heal": True, "logprobs": 1, "max_tokens": 4}
    (choice,) = complete(server, **body)["choices"]
    assert "".join(choice["logprobs"]["tokens"]) == choice["text"]
