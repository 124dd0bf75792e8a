"""llama.cpp's own completions, as its clients send and read them."""

from __future__ import annotations

import json
from typing import Any

from .running import Running

STORY: dict[str, Any] = {"prompt": "Once upon a time", "n_predict": 12, "temperature": 0}


def ask(server: Running, **fields: Any) -> Any:
    answer = server.post("/completion", STORY | fields)
    assert answer.status_code == 200, answer.text
    return answer.json()


def streamed(server: Running, **fields: Any) -> list[dict[str, Any]]:
    with server.stream("/completion", STORY | fields) as lines:
        found = [line for line in lines if line]
    assert all(line.startswith("data: {") for line in found)  # and nothing says [DONE]
    return [json.loads(line.removeprefix("data: ")) for line in found]


def test_a_streamed_answer_adds_up_to_the_whole_one(server: Running) -> None:
    whole = ask(server, return_tokens=True)
    *parts, last = streamed(server, return_tokens=True)
    assert not any(part["stop"] for part in parts) and last["stop"] is whole["stop"] is True
    assert "".join(part["content"] for part in parts) == whole["content"] != ""
    assert [token for part in parts for token in part["tokens"]] == whole["tokens"]
    assert last["content"] == "" and last["tokens"] == []
    for end in (whole, last):
        assert (end["tokens_predicted"], end["stop_type"]) == (12, "limit")
        assert end["prompt"] == STORY["prompt"] and end["model"] == "demo"
        assert end["generation_settings"]["n_predict"] == 12 and end["truncated"] is False
        assert end["timings"]["predicted_n"] == 12
        assert end["timings"]["prompt_n"] + end["timings"]["cache_n"] == end["tokens_evaluated"]
    assert ask(server)["tokens"] == []


def test_probabilities_timings_and_progress_come_when_asked_for(server: Running) -> None:
    (first, *_) = ask(server, n_probs=3)["completion_probabilities"]
    assert len(first["top_logprobs"]) == 3 and first["id"] == first["top_logprobs"][0]["id"]
    events = streamed(server, n_probs=1, timings_per_token=True, return_progress=True)
    progress = [event for event in events if "prompt_progress" in event]
    assert events[: len(progress)] == progress != []
    for event in events[len(progress) : -1]:
        assert event["timings"] and len(event["completion_probabilities"]) == len(event["tokens"])
    assert "completion_probabilities" not in ask(server)
