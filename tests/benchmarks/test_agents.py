"""The sessions of the benchmark of agents: what they ask, and which of its tokens count as new."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from benchmarks import agents, reciting, sessions
from benchmarks.process import Server

import mlxgen
from mlxgen.chat.template.format import Chat

TOKENIZER = reciting.tokenizer()


def encoded(text: str) -> list[int]:
    return list(TOKENIZER.encode(text, add_special_tokens=False))


def recited(ask: sessions.Ask) -> sessions.Message:
    """The message that a server makes of the answer."""
    text = "".join(reciting.answer(ask.thinks)[: ask.cut])
    thought, _, said = text.removeprefix("<think>").rpartition("</think>")
    said, _, call = said.partition("<tool_call>")
    message: sessions.Message = {
        "role": "assistant",
        "content": said.strip(),
        "reasoning_content": thought.strip(),
    }
    if call:
        function = json.loads(call.partition("</tool_call>")[0])
        function["arguments"] = json.dumps(function["arguments"])
        message["tool_calls"] = [{"id": "c", "type": "function", "function": function}]
    return message


def prompts(*, scale: float, turns: int) -> list[tuple[sessions.Ask, list[int]]]:
    """The requests of two sessions with the tokens of their prompts."""
    both = [sessions.Session(name, name == "a", scale, turns) for name in "ab"]
    found = []
    for session, ask in sessions.side_by_side(both):
        found.append((ask, agents.prompt_of(ask, TOKENIZER)))
        if ask.is_turn:
            session.answered(recited(ask))
    return found


@pytest.mark.parametrize("thinks", [True, False])
def test_an_answer_has_the_tokens_that_were_generated(thinks: bool) -> None:
    pieces = reciting.answer(thinks)
    tokens = encoded("".join(pieces))
    assert [TOKENIZER.decode([token]) for token in tokens] == pieces
    assert len(set(tokens)) == len(tokens)


def test_a_later_prompt_goes_on_from_the_answer_until_the_user_speaks() -> None:
    of_one = [each for each in prompts(scale=40, turns=7) if each[0].name[0] == "a"]
    first, title, *later = of_one
    answer = encoded("".join(reciting.answer(True)))
    turns = [first, *later]
    for (_, before), (_, after) in pairwise(turns[:6]):
        assert after[: len(before) + len(answer)] == before + answer
    assert not title[0].tools and title[0].cut
    seen = sessions.Seen()
    seen.add(turns[5][1], [])
    known = len(turns[6][1]) - seen.new(turns[6][1])
    assert known == len(first[1])  # the reasoning of the first answer is gone


def test_sessions_share_system_and_tools_and_are_the_same_each_time() -> None:
    one, other = (prompts(scale=40, turns=2) for _ in range(2))
    assert one == other
    seen = sessions.Seen()
    (_, first), (_, second) = one[:2]
    seen.add(first, [])
    assert 0 < seen.new(second) < len(second) / 4


def test_lengths_are_those_of_an_agent() -> None:
    (ask, prompt), *_ = prompts(scale=1, turns=1)
    common = len(prompt) - len(encoded(ask.messages[-1]["content"]))
    assert 19_000 < common < 21_000
    prose = sessions.Prose("lengths")
    lengths = [prose.length(*sessions.TURN, 1) for _ in range(200)]
    assert 200 <= min(lengths) < 300 and 3_000 < max(lengths) <= 4_000
    assert 0.9 < len(encoded(prose.code(2_000))) / 2_000 < 1.1


def test_tokens_are_new_after_the_longest_beginning_that_was_seen() -> None:
    seen = sessions.Seen()
    assert seen.new([1, 2, 3]) == 3
    seen.add([1, 2, 3], [4, 5])
    seen.add([1, 2, 9], [])
    assert seen.new([1, 2, 3, 4, 7, 6]) == 2
    assert seen.new([1, 2, 3, 4, 5, 6]) == 1
    assert seen.new([1, 2, 9, 9]) == 1
    assert seen.new([1, 2]) == 1  # for what comes after it
    seen.forget()
    assert seen.new([1, 2]) == 2


@pytest.mark.parametrize("model", agents.MODELS, ids=lambda model: str(model.name))
def test_random_models_recite(model: agents.Model, tmp_path: Path) -> None:
    lm = mlxgen.load(reciting.save(tmp_path, model.architecture, **model.shape))
    for thinks in (True, False):
        chat = Chat([{"role": "user", "content": "Hi"}], template={"enable_thinking": thinks})
        tokens: Any = lm.generate(chat.tokens(lm.vocabulary), temperature=0, max_tokens=99).tokens
        assert lm.vocabulary.decode(tokens) + "<|im_end|>" == "".join(reciting.answer(thinks))


def test_what_a_restart_makes_new_is_counted_for_servers_that_forget() -> None:
    found = {}
    for remembers in (False, True):
        server = Server("mlxgen")
        contender = agents.Contender(server, remembers, [])
        row = agents.Row("a", prompt=100, new=30 if remembers else 90, unseen=30, run=45, first=0.5)
        contender.rows += [row, row]
        found[remembers] = contender
    assert [found[one].lost for one in (False, True)] == [120, 0]
    assert [found[one].over_new for one in (False, True)] == [0.5, 1.5]
    assert found[True].waited == 1
    assert found[True].account == "1.500 (90 of 60)"


def test_streams_are_put_together() -> None:
    message: sessions.Message = {"content": "", "reasoning_content": ""}
    calls: dict[int, sessions.Message] = {}
    deltas: list[sessions.Message] = [
        {"role": "assistant", "content": ""},
        {"reasoning": "Let"},
        {"reasoning_content": " be"},
        {"content": "I see"},
        {"tool_calls": [{"index": 0, "id": "c", "function": {"name": "read", "arguments": ""}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": "{}"}}]},
    ]
    assert [agents.added(each, message, calls) for each in deltas] == [False, *[True] * 5]
    assert message == {"content": "I see", "reasoning_content": "Let be"}
    assert calls[0]["id"] == "c"
    assert calls[0]["function"] == {"name": "read", "arguments": "{}"}
