"""Prompts come back with their log-probabilities, as evaluators ask for them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

import mlxgen
from mlxgen import LanguageModel
from mlxgen.engine.scheduling.scheduler import Scheduler
from mlxgen.server.chat import parse_chat
from mlxgen.server.completions import parse_completion

from .kit import refused
from .test_demo_model import Desk

TEXT = "The capital of France is Paris. The fox said \u201chello\u201d 😊."


@pytest.fixture(scope="module")
def lm() -> LanguageModel:
    return mlxgen.load()


@pytest.fixture
def desk(lm: LanguageModel) -> Iterator[Desk]:
    scheduler = Scheduler(lm.runtime)
    yield Desk(lm, scheduler)
    scheduler.close()


def complete(desk: Desk, **fields: Any) -> dict[str, Any]:
    answer: dict[str, Any] = desk.events({"temperature": 0, **fields}, parse_completion)
    return answer


def reference(lm: LanguageModel, tokens: list[int]) -> list[float]:
    """The log-probability of each token but the first."""
    logits = lm.model(mx.array([tokens]))[0, :-1].astype(mx.float32)
    logprobs = np.array(logits - mx.logsumexp(logits, axis=-1, keepdims=True))
    return [float(row[token]) for row, token in zip(logprobs, tokens[1:], strict=True)]


@pytest.mark.parametrize("as_ids", [False, True])
def test_an_echo_has_the_log_probabilities_of_the_prompt(desk: Desk, as_ids: bool) -> None:
    ids = desk.lm.vocabulary.encode(TEXT)
    prompt: Any = ids if as_ids else TEXT
    for budget in (0, 1, 5):
        answer = complete(desk, prompt=prompt, echo=True, logprobs=2, max_tokens=budget)
        (choice,) = answer["choices"]
        lists = choice["logprobs"]
        count = len(lists["tokens"])
        assert {len(values) for values in lists.values()} == {count}
        assert answer["usage"]["completion_tokens"] == budget and count <= len(ids) + budget
        assert "".join(lists["tokens"]) == choice["text"] and choice["text"].startswith(TEXT)
        assert lists["token_logprobs"][0] is None and lists["top_logprobs"][0] is None
        scored = lists["token_logprobs"][1 : len(ids)]
        assert scored == pytest.approx(reference(desk.lm, ids), abs=1e-3)
        for at, token in zip(lists["text_offset"], lists["tokens"], strict=True):
            assert choice["text"][at : at + len(token)] == token
        assert choice["finish_reason"] == "length"


def test_an_evaluator_reads_the_likelihood_of_an_answer_behind_a_question(desk: Desk) -> None:
    # as lm-evaluation-harness does: sums behind the context, and whether greedy says the same
    context = desk.lm.vocabulary.encode("The capital of France is")
    rows = [context + desk.lm.vocabulary.encode(word) for word in (" Paris.", " Xylophone.")]
    answer = complete(desk, prompt=rows, max_tokens=1, logprobs=1, seed=1234, echo=True)
    sums = []
    for choice in sorted(answer["choices"], key=lambda choice: choice["index"]):
        lists = choice["logprobs"]
        sums.append(sum(lists["token_logprobs"][len(context) : -1]))
        tokens = lists["token_logprobs"][len(context) : -1]
        for logprob, top in zip(tokens, lists["top_logprobs"][len(context) : -1], strict=True):
            assert logprob <= max(top.values()) + 1e-6
    assert sums[0] > sums[1]


def test_an_end_token_is_counted_where_evaluators_leave_out_what_was_generated(desk: Desk) -> None:
    # they sum token_logprobs[context:-1] with max_tokens 1, whatever that one token is
    (eos, *_) = desk.lm.vocabulary.eos
    ids = desk.lm.vocabulary.encode("The capital of France is Paris.")
    body = {"prompt": ids, "max_tokens": 1, "logprobs": 1, "echo": True}
    for bias in (100.0, -100.0):
        answer = complete(desk, **body, logit_bias={str(eos): bias})
        lists = answer["choices"][0]["logprobs"]
        assert {len(values) for values in lists.values()} == {len(ids) + 1}
        assert lists["token_logprobs"][1:-1] == pytest.approx(reference(desk.lm, ids), abs=1e-3)
        assert "".join(lists["tokens"]) == answer["choices"][0]["text"]


def test_a_streamed_echo_says_the_same(desk: Desk) -> None:
    body = {"prompt": TEXT, "echo": True, "logprobs": 1, "max_tokens": 4}
    (whole,) = complete(desk, **body)["choices"]
    events = desk.events({**body, "temperature": 0, "stream": True}, parse_completion)
    choices = [choice for event in events for choice in event["choices"]]
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


def test_prompt_logprobs_are_by_token_id(desk: Desk) -> None:
    ids = desk.lm.vocabulary.encode(TEXT)
    body = {"prompt": TEXT, "prompt_logprobs": 1, "max_tokens": 1, "return_token_ids": True}
    (choice,) = complete(desk, **body)["choices"]
    assert choice["prompt_token_ids"] == ids and choice["logprobs"] is None
    first, *entries = choice["prompt_logprobs"]
    assert first is None
    for token, entry, wanted in zip(ids[1:], entries, reference(desk.lm, ids), strict=True):
        own = entry[str(token)]
        assert own["logprob"] == pytest.approx(wanted, abs=1e-3)
        assert own["decoded_token"] and 1 in {other["rank"] for other in entry.values()}


def test_a_chats_prompt_is_scored_as_well(desk: Desk) -> None:
    body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1}
    answer = desk.events({**body, "prompt_logprobs": 0, "return_token_ids": True})
    assert len(answer["prompt_logprobs"]) == len(answer["prompt_token_ids"])
    assert all(len(entry) == 1 for entry in answer["prompt_logprobs"][1:])
    streamed = {**body, "prompt_logprobs": 0, "stream": True}
    assert refused(parse_chat, streamed, desk.model).param == "prompt_logprobs"
