"""Answers that are steered while they are generated: what each order does, and what the stream
tells of it. ``kept`` in a line of ``tests/data/server/steering.jsonl`` finds what was put into the
text, up to which it is as without the orders.

The steps of the server take long until a test reads an answer to its end, so that no answer has
ended before it is steered.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from .apis import APIS
from .exchanges import carry_out, fits, lines, outcome, wanted
from .kit import demo
from .running import Put, Running, Slow, endless, error, events, good, question

TEXT, CHAT = "/v1/completions", "/v1/chat/completions"
LLAMA = "/v1/chat/completions/control"
ENDLESS = endless(max_tokens=300, temperature=0)
SHOWN = {**ENDLESS, "allow_retract": True}
LINES = lines("steering")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slow]:
    program = "endless=tests.server.own_code:endless"
    with Slow(tmp_path_factory.mktemp("slow") / "slow", "--program", program) as server:
        yield server


class Following(Put):
    """A stream as far as it was read: its only choice, put together from what it told."""

    def __init__(self, found: Iterator[Mapping[str, Any]], slow: Path) -> None:
        super().__init__()
        self._found, self._slow, self.id = found, slow, ""

    @property
    def text(self) -> str:
        return self.texts.get(0, "")

    @property
    def thought(self) -> str:
        return self.thoughts.get(0, "")

    @property
    def finish(self) -> str:
        return str(self.ends[0]["finish_reason"])

    def take(self) -> bool:
        """Read an event; whether there was one."""
        event = next(self._found, None)
        if event is not None:
            self.id = event["id"]
            self.add(event)
        return event is not None

    def until(self, characters: int) -> None:
        while len(self.text) + len(self.thought) < characters:
            assert self.take()

    def to_the_end(self) -> str:
        self._slow.unlink(missing_ok=True)
        while self.take():
            pass
        return self.text


@contextmanager
def followed(
    server: Slow, body: Mapping[str, Any], path: str = TEXT, characters: int = 20
) -> Iterator[Following]:
    """A stream of which so many characters have come."""
    server.slow.touch()
    try:
        with server.stream(path, body) as lines:
            following = Following(events(lines), server.slow)
            following.until(characters)
            yield following
    finally:
        server.slow.unlink(missing_ok=True)


def control(server: Running, id: str, action: str, **fields: Any) -> httpx.Response:
    return server.post(f"/v1/requests/{id}/control", {"action": action, **fields})


@pytest.fixture(scope="module")
def alone(server: Slow) -> str:
    """What the model writes if nobody interferes."""
    text: str = server.post(TEXT, ENDLESS).json()["choices"][0]["text"]
    return text


# ---- the actions -------------------------------------------------------------------------------


@pytest.mark.whole
@pytest.mark.parametrize("line", LINES, ids=lambda line: line["case"])
def test_each_order_does_what_its_line_says(line: Mapping[str, Any], server: Slow) -> None:
    body = {**ENDLESS, **line.get("body", {})}
    (plain,) = good(server.post(TEXT, body))["choices"]
    with followed(server, body) as answer:
        for order in line["orders"]:
            told = outcome(control(server, answer.id, **order["send"]))
            assert fits(told, wanted(order)), told
        text = answer.to_the_end()
    assert answer.finish == line["finish"]
    assert bool(answer.retracted) is line.get("retracts", False)
    if "kept" not in line:
        assert text == plain["text"], "greedy draws are the same again"
    else:
        changed = re.search(line["kept"], text)
        assert changed is not None and text != plain["text"]
        assert plain["text"].startswith(text[: changed.start()])
    assert error(control(server, answer.id, "stop"), 409)["code"] == "answer_ended"


@pytest.mark.parametrize("loops", ["off", "take back"])
def test_the_thinking_ends_and_the_answer_begins(server: Slow, loops: str) -> None:
    (end,) = demo().vocabulary.encode("</think>", special=False)
    body = question(max_tokens=1500, ignore_eos=True, loops=loops, logit_bias={end: -100})
    with followed(server, body, CHAT) as answer:
        assert answer.thought and answer.text == ""
        refused = error(control(server, answer.id, "options", regex="[0-9]*"), 409)
        assert refused["code"] == "not_now" and "thinking" in refused["message"]
        if loops == "off":
            good(control(server, answer.id, "reasoning_end"))
        else:
            told = good(server.post(LLAMA, {"id": answer.id, "action": "reasoning_end"}))
            assert told == {"success": True}
        while not answer.text:
            assert answer.take()
        refused = error(control(server, answer.id, "reasoning_end"), 409)
        assert refused["code"] == "not_now"
        told = good(server.post(LLAMA, {"id": answer.id, "action": "reasoning_end"}))
        assert not told["success"] and "thinking" in told["message"]
        good(control(server, answer.id, "stop"))
        answer.to_the_end()
    assert answer.thought.count("so I answer now") == 1
    told = good(server.post(LLAMA, {"id": answer.id, "action": "reasoning_end"}))
    assert told == {"success": False, "message": "the answer has ended"}


def test_a_whole_answer_is_steered_by_the_name_of_its_request(server: Slow, alone: str) -> None:
    body = {**SHOWN, "logprobs": 0}
    server.slow.touch()
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(server.post, TEXT, body, headers={"x-request-id": "mine"})
        server.wait_until(
            lambda: control(server, "mine", "rewind", tokens=0).status_code == 200, "it is unknown"
        )
        good(control(server, "mine", "put", to=0, text="Here"))
        server.slow.unlink()
        (choice,) = asked.result().json()["choices"]
    assert choice["text"].startswith("Here") and choice["text"] != alone
    assert "".join(choice["logprobs"]["tokens"]) == choice["text"]


def test_others_notice_nothing(server: Slow, alone: str) -> None:
    with followed(server, SHOWN) as answer, followed(server, ENDLESS) as other:
        for length in (3, 2, 1):
            good(control(server, answer.id, "rewind", to=length))
            good(control(server, answer.id, "options", temperature=length / 2))
        good(control(server, answer.id, "options", to=1, temperature=0))
        assert answer.to_the_end()
        assert other.to_the_end() == alone


# ---- what cannot be done -----------------------------------------------------------------------


def test_a_wrong_order_is_refused_and_names_its_field(server: Slow, alone: str) -> None:
    with followed(server, {**ENDLESS, "num_draft_tokens": 0}, characters=1) as answer:
        carry_out(server, "steered", id=answer.id)
        assert answer.to_the_end() == alone


def test_a_choice_of_several_has_to_be_named(server: Slow) -> None:
    server.slow.touch()
    with server.stream(TEXT, {**ENDLESS, "n": 2, "temperature": 1}) as lines:
        found = events(lines)
        id = next(found)["id"]
        assert error(control(server, id, "stop"), 400)["param"] == "index"
        assert good(control(server, id, "stop", index=1))["index"] == 1
        server.slow.unlink()
        ends = [
            (choice["index"], choice["finish_reason"])
            for event in found
            for choice in event["choices"]
            if choice["finish_reason"]
        ]
    assert sorted(ends) == [(0, "length"), (1, "stop")]


def test_clients_do_not_interfere_with_a_program(server: Slow) -> None:
    server.slow.touch()
    with server.stream(TEXT, {"prompt": "Once", "program": "endless"}) as lines:
        id = next(events(lines))["id"]
        assert error(control(server, id, "stop"), 409)["code"] == "has_program"
    server.slow.unlink()


def test_nobody_steers_the_answer_of_another_and_a_full_server_can_be_steered(
    tmp_path: Path,
) -> None:
    keys = [{"x-api-key": key} for key in ("mine", "theirs")]
    own = ("--api-key", "mine", "--api-key", "theirs", "--max-batch", "1", "--max-queue", "1")
    with Slow(tmp_path / "slow", *own) as full:
        full.slow.touch()
        url, body = full.url + TEXT, {**ENDLESS, "stream": True}
        named = {**keys[0], "x-request-id": "my-own-name"}
        with (
            httpx.stream("POST", url, json=body, headers=named) as first,
            httpx.stream("POST", url, json=body, headers=keys[0]) as second,
        ):
            assert first.headers["x-request-id"] == "my-own-name"
            waits = second.headers["x-request-id"]
            for id in ("my-own-name", waits, "unknown"):
                path = f"/v1/requests/{id}/control"
                refused = full.post(path, {"action": "stop"}, headers=keys[1])
                assert error(refused, 404)["code"] == "answer_not_found"
            for api in APIS:
                for streams in (False, True):
                    refused = full.post(api.path, api.body(stream=streams), headers=keys[1])
                    assert error(refused, 429)["code"] == "queue_full"
                    assert 1 <= int(refused.headers["retry-after"]) <= 60
            for id in (waits, "my-own-name"):
                path = f"/v1/requests/{id}/control"
                good(full.post(path, {"action": "stop"}, headers=keys[0]))
            for stream in (first, second):
                assert '"finish_reason":"stop"' in "".join(stream.iter_lines())
