"""What a person says, what is shown for it, and what the conversation becomes."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import mlxgen
from mlxgen import generate
from mlxgen.errors import MachineError

from ..fakes.chatting import THINK, THOUGHT, Chatter
from .conftest import Talking

# ---- messages and answers ----


def test_without_a_home_folder_a_chat_is_not_kept(
    talk: Talking, homeless: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert talk(Chatter().lm, "one", typing=True).said == [("one", "ONE")]
    assert generate.main(["--resume"]) == 2
    assert "--resume: there is no home folder" in capsys.readouterr().err


def test_a_chat_that_a_person_held_is_gone_on_with(
    talk: Talking, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    held = talk(Chatter().lm, '"""', "", "one", "two", '"""', typing=True)
    again = talk(Chatter().lm, argv=["--resume"])
    assert "going on after: one two\n" in again.noted
    assert again.said == held.said == [("\none\ntwo", "\nONE\nTWO")]


# ---- reasoning and forms ----


def test_forms_hold_together_for_what_follows_the_reasoning(talk: Talking) -> None:
    demo, question = mlxgen.load(), "What is 34 + 28?"
    lines = ('/json {"enum": ["ab", "cd"]}', '/regex "a.*', question, "/json off", question)
    done = talk(demo, *lines, "/set close_json true", "/regex off", "/set close_json")
    assert done.said[0][1] == '"ab"' and done.said[1][1].startswith('"a')
    assert "| 4 + 8 = 12, carry 1." in done.noted and "carry" not in done.shown
    assert done.noted.endswith("regex: off\n  close_json           false\n")  # went with the form
    closed = talk(demo, '/json {"properties": {}, "type": "object"}', question)
    assert json.loads(closed.said[0][1]) == {}  # an object has no keys but those that are named


def test_a_character_of_several_tokens_is_taken_back_whole(talk: Talking) -> None:
    lines = ("How do you say hello in Chinese?", "/tokens all", '/rewind "你"', "/tokens 1")
    quiet = ["--chat-template-args", '{"enable_thinking": false}']
    noted = talk(mlxgen.load(), *lines, argv=quiet).noted
    assert '"<0xE4>"' in noted and '"<0xBD>"' in noted  # of 你
    assert "\n10 tokens; the least sure" in noted


# ---- interrupts and losses ----


def press_at(place: int, text: str, message: str = "") -> Callable[[str], str]:
    """Answers of ``text``, at whose character ``place`` somebody presses Ctrl-C; ``message``: to
    this one alone."""

    class Answer(str):
        def __getitem__(self, key: Any) -> str:
            if isinstance(key, slice) and key.start == place:
                signal.raise_signal(signal.SIGINT)
            return super().__getitem__(key)

    return lambda said: Answer(text) if message in said else said.upper()


@pytest.mark.parametrize("rest", ["efghijklmnop", "</think</think"])  # which may begin a mark
def test_an_interrupt_stops_the_answer_and_keeps_the_text_so_far(talk: Talking, rest: str) -> None:
    text = f"{THINK}{THOUGHT}abcd{rest}"
    done = talk(Chatter(press_at(len(text) - len(rest) + 1, text), thinks=True).lm, "one")
    assert re.fullmatch(rf"abcd{rest[0]}[{rest[1:3]}]*\n", done.shown)
    assert done.noted == "(stopped; /continue goes on)\n"
    assert done.said == [("one", done.shown.removesuffix("\n"))]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("line", ["no", "/edit no"])
def test_an_interrupt_before_anything_came_leaves_the_conversation_as_it_was(
    line: str, talk: Talking
) -> None:
    done = talk(Chatter(press_at(0, "abcdefghijklmnop", "no")).lm, "one", line)
    assert done.shown == "ONE\n"
    assert "(stopped before the answer began; the conversation is unchanged)" in done.noted
    assert done.said == [("one", "ONE")]


def test_an_ignored_interrupt_stays_ignored(talk: Talking) -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert talk(Chatter(press_at(3, "abcdef")).lm, "one").said == [("one", "abcdef")]
    finally:
        signal.signal(signal.SIGINT, before)


def test_on_several_machines_an_interrupt_or_a_lost_one_ends_the_conversation(
    talk: Talking, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Joined:
        lost = None

    def lose(message: str) -> str:
        raise MachineError("rank 1 (mac2) is lost")

    monkeypatch.setattr(generate, "join", Joined)
    monkeypatch.setattr(generate, "end_as_interrupted", lambda: None)
    stopped = talk(Chatter(press_at(5, "abcdefghijklmnop")).lm, "one", "two")
    assert (stopped.status, stopped.shown[:5]) == (generate.INTERRUPTED, "abcde")
    assert "/quit ends" in stopped.noted and not stopped.saved
    lost = talk(Chatter(lose).lm, "one", "two")
    assert lost.status == generate.LOST and "rank 1 (mac2) is lost" in lost.noted
