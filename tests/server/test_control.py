"""Answers that are steered while they are generated: what each order does, and what the stream
tells of it.

The steps of the server take long until a test reads an answer to its end, so that no answer has
ended before it is steered.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from .kit import demo
from .running import Running, Slow, endless, error, events, good, question, slowly

TEXT, CHAT = "/v1/completions", "/v1/chat/completions"
LLAMA = "/v1/chat/completions/control"
ENDLESS = endless(max_tokens=300, temperature=0)
SHOWN = {**ENDLESS, "allow_retract": True}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slow]:
    program = "endless=tests.server.own_code:endless"
    with slowly(tmp_path_factory.mktemp("slow") / "slow", "--program", program) as server:
        yield server


class Following:
    """A stream as far as it was read: its text and thinking, put together from what it told."""

    def __init__(self, found: Iterator[Mapping[str, Any]], slow: Path) -> None:
        self._found = found
        self._slow = slow
        self.id, self.text, self.thought = "", "", ""
        self.retracted = 0
        self.finish: str | None = None

    def take(self) -> bool:
        """Read an event; whether there was one."""
        event = next(self._found, None)
        if event is None:
            return False
        self.id = event["id"]
        for choice in event["choices"]:
            delta = choice.get("delta", choice)
            back, thought = choice.get("retract", 0), choice.get("retract_reasoning", 0)
            assert back <= len(self.text) and thought <= len(self.thought)
            self.retracted += back
            self.text = self.text[: len(self.text) - back]
            self.text += delta.get("text") or delta.get("content") or ""
            self.thought = self.thought[: len(self.thought) - thought]
            self.thought += delta.get("reasoning_content") or ""
            self.finish = choice["finish_reason"] or self.finish
        return True

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


def test_a_stop_ends_the_text(server: Slow, alone: str) -> None:
    with followed(server, ENDLESS) as answer:
        told = good(control(server, answer.id, "stop"))
        assert told["id"] == answer.id and 0 < told["length"] < 300
        text = answer.to_the_end()
        assert answer.finish == "stop"
    assert alone.startswith(text) and len(text) < len(alone)
    assert error(control(server, answer.id, "stop"), 409)["code"] == "answer_ended"


def test_a_rewind_is_told_to_whoever_allows_retractions(server: Slow, alone: str) -> None:
    with followed(server, SHOWN) as answer:
        assert good(control(server, answer.id, "rewind", to=2))["length"] == 2
        assert good(control(server, answer.id, "rewind", tokens=1))["length"] >= 1
        assert answer.to_the_end() == alone, "greedy draws are the same again"
        assert answer.retracted


def test_what_was_delivered_stays_for_all_others(server: Slow, alone: str) -> None:
    with followed(server, ENDLESS) as answer:
        refused = error(control(server, answer.id, "rewind", to=0), 409)
        assert (refused["code"], refused["param"]) == ("cannot_rewind", "to")
        assert "of which 0 can be taken back" in refused["message"]
        assert answer.to_the_end() == alone
    with followed(server, {**ENDLESS, "hold_tokens": 30}) as answer:
        refused = error(control(server, answer.id, "rewind", tokens=1000), 409)
        assert refused["param"] == "tokens" and "of which 30 can" in refused["message"]
        good(control(server, answer.id, "rewind", tokens=30))
        assert answer.to_the_end() == alone
        assert not answer.retracted


def test_text_and_tokens_are_put_where_they_are_wanted(server: Slow, alone: str) -> None:
    vocabulary = demo().vocabulary
    with followed(server, SHOWN) as answer:
        good(control(server, answer.id, "put", to=3, text=" PUT THERE"))
        text = answer.to_the_end()
        place = text.index(" PUT THERE")
        assert alone.startswith(text[:place]) and text != alone
        assert answer.finish == "length"
    run = vocabulary.encode("some tokens", special=False)
    with followed(server, ENDLESS) as answer:
        good(control(server, answer.id, "put", tokens=run))
        assert "some tokens" in answer.to_the_end()
        assert not answer.retracted


def test_what_may_not_stand_there_leaves_the_answer_as_it_is(server: Slow) -> None:
    body = {**ENDLESS, "ignore_eos": False, "regex": "[ab]{200}c"}
    whole = server.post(TEXT, body).json()["choices"][0]["text"]
    with followed(server, body) as answer:
        refused = error(control(server, answer.id, "put", text="abx"), 400)
        assert refused["param"] == "text"
        assert answer.to_the_end() == whole


def test_options_hold_from_there_on(server: Slow, alone: str) -> None:
    with followed(server, SHOWN) as answer:
        good(control(server, answer.id, "options", to=4, regex="[0-9]{30}", temperature=1))
        text = answer.to_the_end()
        assert text[-30:].isdigit() and alone.startswith(text[:-30])
    with followed(server, ENDLESS) as answer:
        good(control(server, answer.id, "options", stop=["a", "e", "i", "o", "u", " "]))
        answer.to_the_end()
        assert answer.finish == "stop"
    with followed(server, ENDLESS) as answer:
        refused = error(control(server, answer.id, "options", top_p=7), 400)
        assert refused["param"] == "top_p"
        refused = error(control(server, answer.id, "options", regex="["), 400)
        assert refused["param"] == "regex"
        assert answer.to_the_end() == alone


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


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "action"),
        ({"action": "dance"}, "action"),
        ({"action": "options"}, "action"),
        ({"action": "options", "seed": 1}, "seed"),
        ({"action": "options", "text": "x"}, "text"),
        ({"action": "options", "temperature": "hot"}, "temperature"),
        ({"action": "options", "regex": "a", "choice": ["b"]}, "choice"),
        ({"action": "rewind"}, "tokens"),
        ({"action": "rewind", "tokens": 1, "to": 1}, "tokens"),
        ({"action": "rewind", "tokens": -1}, "tokens"),
        ({"action": "rewind", "tokens": [1]}, "tokens"),
        ({"action": "put"}, "text"),
        ({"action": "put", "text": ""}, "text"),
        ({"action": "put", "text": "x", "tokens": [1]}, "text"),
        ({"action": "put", "tokens": 3}, "tokens"),
        ({"action": "put", "tokens": [10**6]}, "tokens[0]"),
        ({"action": "stop", "tokens": 3}, "tokens"),
        ({"action": "stop", "index": 1}, "index"),
        ({"action": "reasoning_end", "temperature": 1}, "temperature"),
    ],
    ids=str,
)
def test_a_wrong_body_is_refused_and_names_the_field(
    fields: Mapping[str, Any], param: str, steady: Following, server: Slow
) -> None:
    answer = server.post(f"/v1/requests/{steady.id}/control", fields)
    assert error(answer, 400)["param"] == param


@pytest.fixture
def steady(server: Slow) -> Iterator[Following]:
    """An answer that goes on meanwhile."""
    with followed(server, ENDLESS, characters=1) as answer:
        yield answer


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
    with slowly(tmp_path / "slow", *own) as full:
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
            refused = full.post(TEXT, ENDLESS, headers=keys[1])
            assert error(refused, 429)["code"] == "queue_full"
            assert refused.headers["retry-after"]
            for id in (waits, "my-own-name"):
                path = f"/v1/requests/{id}/control"
                good(full.post(path, {"action": "stop"}, headers=keys[0]))
            for stream in (first, second):
                assert '"finish_reason":"stop"' in "".join(stream.iter_lines())
