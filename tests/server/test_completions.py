"""Completions: what requests become, and replies, which say the same streamed or whole."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types import Completion

from mlxgen.engine.chunk import Alternative, Chunk, FinishReason
from mlxgen.sampling import derive_seed
from mlxgen.server.completions import parse_completion
from tests.chat.kit import tokens_of

from ..effort import tries
from .kit import chunks_of, demo, news, plain, read_again, usage, whole_of


def test_jobs_are_the_choices_of_each_prompt_in_turn() -> None:
    call = parse_completion({"prompt": [[5, 6], [7]], "n": 2, "seed": 3}, demo())
    assert [job.prompt.tokens for job in call.jobs] == [(5, 6), (5, 6), (7,), (7,)]
    seeds = [job.options.seed for job in call.jobs]
    assert seeds == [3, derive_seed(3, 1)] * 2


def test_the_last_tokens_of_a_prompt_are_kept() -> None:
    ids = list(range(70, 90))
    for most, kept in ((5, ids[-5:]), (50, ids), (-1, ids)):
        (job,) = parse_completion({"prompt": ids, "truncate_prompt_tokens": most}, demo()).jobs
        assert list(job.prompt.tokens) == kept
    long = {"prompt": [70] * 3000, "truncate_prompt_tokens": -1, "max_tokens": 20}
    (job,) = parse_completion(long, demo()).jobs
    assert len(job.prompt.tokens) == 2048 - 20


def answers(
    body: dict[str, Any], rows: list[list[Chunk]], model: Any = None
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The events of a stream, and the whole answer, of the same chunks."""
    model = model or demo()
    streamed = parse_completion({**body, "stream": True}, model).reply(id="cmpl-1", created=5)
    whole = parse_completion(body, model).reply(id="cmpl-1", created=5)
    events = read_again(streamed.start())
    folded = [*whole.start()]
    for index, row in enumerate(rows):
        for chunk in row:
            events += read_again(streamed.take(news(chunk, index)))
            folded += whole.take(news(chunk, index))
    usages = [usage(7, len(row)) for row in rows]
    events += read_again(streamed.finish(usages))
    answer = whole_of(whole, [*folded, *whole.finish(usages)])
    for event in json.loads(json.dumps(events, allow_nan=False)):
        for choice in event["choices"]:  # the client's type knows no choice without it
            choice["finish_reason"] = choice["finish_reason"] or "stop"
        Completion.model_validate(event)
    Completion.model_validate(json.loads(json.dumps(answer, allow_nan=False)))
    return events, answer


def folded(events: list[dict[str, Any]], choices: int = 1) -> list[dict[str, Any]]:
    """The choices that a stream's events come to."""
    out: list[dict[str, Any]] = [{"text": "", "finish_reason": None} for _ in range(choices)]
    for event in events:
        for part in event["choices"]:
            choice = out[part["index"]]
            assert choice["finish_reason"] is None, "nothing follows the finish"
            choice["text"] += part["text"]
            choice["finish_reason"] = part["finish_reason"]
            for name, entries in (part["logprobs"] or {}).items():
                choice.setdefault("logprobs", {}).setdefault(name, []).extend(entries)
            for name in ("token_ids", "tokens"):
                choice.setdefault(name, []).extend(part.get(name, []))
    return out


def comparable(choice: dict[str, Any]) -> dict[str, Any]:
    logprobs = {k: v for k, v in (choice["logprobs"] or {}).items() if v}
    plain = {"text": choice["text"], "finish_reason": choice["finish_reason"]}
    ids = {name: choice.get(name, []) for name in ("token_ids", "tokens")}
    return {**plain, **ids, **({"logprobs": logprobs} if logprobs else {})}


def row(text: str, **how: Any) -> list[Chunk]:
    tokens = tokens_of(text, demo().vocabulary)
    return chunks_of(tokens, demo().vocabulary, opens_text=False, **how)


def test_the_token_itself_is_always_among_its_alternatives() -> None:
    chunk = Chunk("b", 98, 0, logprob=-3.0, top=(Alternative(97, -0.1),), finish_reason="length")
    _, answer = answers({"prompt": "a", "logprobs": 1}, [[chunk]], plain())
    assert answer["choices"][0]["logprobs"]["top_logprobs"] == [{"b": -3.0, "a": -0.1}]


@settings(max_examples=tries(100))
@given(
    st.lists(st.integers(3, 1023), min_size=1, max_size=12),
    st.lists(st.integers(0, 9), min_size=1, max_size=4),
    st.sampled_from(["stop", "length"]),
    st.one_of(st.none(), st.integers(0, 20)),
    st.integers(0, 5),
    st.booleans(),
)
def test_a_stream_put_together_is_the_whole_answer(
    tokens: list[int],
    delays: list[int],
    finish: FinishReason,
    cut: int | None,
    first: int,
    ids: bool,
) -> None:
    first = min(first, len(tokens) - 1)
    body = {"prompt": "a", "logprobs": 1, "prefix_tokens": tokens[:first], "max_tokens": 99}
    how: dict[str, Any] = {"finish": finish, "cut": cut, "first": first, "logprob": True}
    chunks = chunks_of(tokens, demo().vocabulary, delays=delays, opens_text=False, **how)
    events, answer = answers({**body, "return_token_ids": ids}, [chunks])
    (choice,) = folded(events)
    whole = answer["choices"][0]
    assert choice == comparable(whole)
    assert whole["text"] == "".join(chunk.text for chunk in chunks)
    assert "".join(whole["logprobs"]["tokens"]) == whole["text"]
