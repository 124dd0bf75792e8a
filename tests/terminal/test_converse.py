"""The conversation in a terminal and over pipes, with the bundled demo model."""

from __future__ import annotations

import io
import json
import os
import random
import re
import signal
import string
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mlxgen.engine import Usage
from mlxgen.errors import MachineError
from mlxgen.terminal.answer import Answerer
from mlxgen.terminal.commands import run_command
from mlxgen.terminal.conversation import Conversation
from mlxgen.terminal.converse import TerminalChat
from mlxgen.terminal.reader import PipeReader
from mlxgen.terminal.report import unheld
from mlxgen.terminal.screens import DimScreen

from ..fakes.chatting import THINK, THOUGHT, Chatter
from .conftest import COMMAND, Terminal

QUIET = ["--chat-template-args", '{"enable_thinking": false}']


# ---- in this process, with a model that does as it is told ----


class Talk:
    """A chat that has run ``lines``, with what it showed and what it noted."""

    def __init__(
        self, chatter: Chatter, *lines: str, first: str | None = None, **kind: Any
    ) -> None:
        self.out, self.notes = io.StringIO(), io.StringIO()
        reader = PipeReader(io.BytesIO("".join(f"{line}\n" for line in lines).encode()))
        chat = TerminalChat(
            Answerer(chatter.lm),
            kind.pop("conversation", None) or Conversation(),
            reader,
            run_command,
            out=self.out,
            notes=self.notes,
            **kind,
        )
        self.status = chat.run(first)
        self.shown, self.noted = self.out.getvalue(), self.notes.getvalue()
        self.said = [(e.message, e.answer) for e in chat.conversation.exchanges]


def test_answers_go_out_with_a_line_end_and_nothing_else_does() -> None:
    talk = Talk(Chatter(), "one", "", "two\\", "lines", "/undo", first="zero")
    assert talk.shown == "ZERO\nONE\nTWO\nLINES\n"
    assert talk.noted == "took back: two lines\n"
    assert talk.said == [("zero", "ZERO"), ("one", "ONE")]
    assert talk.status == 0


def test_an_answer_that_ends_its_line_gets_no_second_line_end() -> None:
    assert Talk(Chatter(lambda message: "a\n"), "one", "two").shown == "a\na\n"


def test_a_block_is_no_command_and_neither_is_the_first_message() -> None:
    talk = Talk(Chatter(), '"""/undo"""', first="/quit")
    assert [message for message, _ in talk.said] == ["/quit", "/undo"]


def test_what_goes_wrong_is_one_line_and_the_chat_goes_on() -> None:
    talk = Talk(Chatter(), "/nothing", "one", "/set temperature hot", "two")
    assert talk.shown == "ONE\nTWO\n"
    assert [line.split(":")[:2] for line in talk.noted.splitlines()] == [
        ["error", " /nothing"],
        ["error", " temperature"],
    ]
    assert talk.status == 2
    person = Talk(Chatter(), "/nothing", "one", interactive=True)
    assert person.status == 0
    assert "chatter: /help" in person.noted


def test_what_is_full_is_offered_to_be_freed_where_a_person_is() -> None:
    chatter = Chatter(lambda message: message[:1] * 30, max_context=200)
    long = "c" * 90
    talk = Talk(chatter, "a", "b", long, "yes", interactive=True)
    assert re.search(
        r"the context holds 200, .* Drop the oldest 2 exchanges, which frees (\d+) tokens\? .*\n"
        r"  a\n  b\n",
        talk.noted,
    )
    assert talk.said == [(long, "c" * 30)]
    assert re.search(r"\(context: \d+ of 200 tokens used, \d+ cached, \d+ left\)", talk.noted)
    kept = Talk(chatter, "a", "b", long, "no", "/show", interactive=True)
    assert "error: with this message the conversation has" in kept.noted
    assert kept.said == [("a", "a" * 30), ("b", "b" * 30)]
    unsure = Talk(chatter, "a", "b", long, "/drop 1", "Yes", interactive=True)
    assert "yes or no?\n" in unsure.noted and unsure.said == [(long, "c" * 30)]
    hopeless = Talk(chatter, "c" * 300, interactive=True)
    assert "Drop" not in hopeless.noted and "error: with this" in hopeless.noted


def test_an_answer_that_has_filled_the_context_goes_on_where_the_oldest_exchange_was() -> None:
    long = "".join(random.Random(1).choices(string.ascii_lowercase, k=90))  # which is no loop

    def answer(message: str) -> str:
        return long if message == "b" else message[:1] * 20

    full = Talk(Chatter(answer, max_context=150), "a", "b", interactive=True)
    assert "(the context of 150 tokens is full; " in full.noted
    assert full.said[1] != ("b", long)
    gone = Talk(Chatter(answer, max_context=150), "a", "b", "/continue", "yes", interactive=True)
    assert "Drop the oldest exchange, which frees" in gone.noted
    assert gone.said == [("b", long)]
    kept = Talk(Chatter(answer, max_context=150), "a", "b", "/continue", "no", interactive=True)
    assert kept.said == full.said and "error: " in kept.noted


def test_the_oldest_exchanges_can_be_dropped_at_any_time() -> None:
    talk = Talk(Chatter(), "one", "two", "three", "/drop 2", "/drop 5")
    assert talk.said == [("three", "THREE")]
    assert re.search(r"dropped, which frees \d\d tokens: one; two\n", talk.noted)
    assert "expected 1 to 1 exchanges to drop, got 5" in talk.noted


def dim(talk: Callable[..., Talk], *given: Any) -> Talk:
    """A chat with its reasoning dimmed."""
    out = io.StringIO()
    made = talk(*given, look=lambda exact: DimScreen(out))
    made.shown = out.getvalue()
    return made


def test_reasoning_is_dimmed_where_that_can_be_and_kept_apart() -> None:
    def think(message: str) -> str:
        return f"{THINK}\nhm\n{THOUGHT}\n\n{message.upper()}"

    chatter = Chatter(think, thinks=True)
    plain = Talk(chatter, "one", "two")
    assert plain.shown == "ONE\nTWO\n"
    assert plain.noted == "| hm\n| hm\n"
    assert plain.said == [("one", "ONE"), ("two", "TWO")]
    assert dim(Talk, chatter, "one", "two").shown == "\x1b[2mhm\x1b[0m\n\nONE\n" + (
        "\x1b[2mhm\x1b[0m\n\nTWO\n"
    )


def test_text_that_ends_in_its_reasoning_is_not_dim_for_ever() -> None:
    chatter = Chatter(lambda message: f"{THINK}\nhm", thinks=True)
    talk = dim(Talk, chatter, "one")
    assert talk.shown == "\x1b[2mhm\x1b[0m\n"
    assert talk.said == [("one", "")]


def press_at(place: int, text: str) -> Callable[[str], str]:
    """Answers of ``text``, at whose character ``place`` somebody presses Ctrl-C."""

    class Answer(str):
        def __getitem__(self, key: Any) -> str:
            if isinstance(key, slice) and key.start == place:
                signal.raise_signal(signal.SIGINT)
            return super().__getitem__(key)

    return lambda message: Answer(text)


def test_an_interrupt_stops_the_answer_and_keeps_the_text_so_far() -> None:
    chatter = Chatter(press_at(5, "abcdefghijklmnop"))
    talk = Talk(chatter, "one", "/show")
    assert re.fullmatch(r"abcde[fg]*\n", talk.shown)
    assert talk.noted.startswith("(stopped; /continue goes on)\n[user] one\n[assistant] abcde")
    assert talk.said == [("one", talk.shown.removesuffix("\n"))]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_interrupt_before_anything_came_leaves_the_conversation_as_it_was() -> None:
    talk = Talk(Chatter(press_at(0, "abcdefghijklmnop")), "one", "/show")
    assert talk.shown == ""
    assert "(stopped before the answer began; the conversation is unchanged)" in talk.noted
    assert talk.said == []


def test_an_ignored_interrupt_stays_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert Talk(Chatter(press_at(3, "abcdef")), "one").said == [("one", "abcdef")]
    finally:
        signal.signal(signal.SIGINT, before)


def test_under_mlx_launch_an_interrupt_ends_the_conversation_too() -> None:
    chatter = Chatter(press_at(5, "abcdefghijklmnop"))
    with pytest.raises(KeyboardInterrupt):
        Talk(chatter, "one", "two", launched=True)


def test_a_lost_machine_ends_the_conversation() -> None:
    def lose(message: str) -> str:
        raise MachineError("rank 1 (mac2) is lost")

    with pytest.raises(MachineError):
        Talk(Chatter(lose), "one", "two")


def test_an_error_in_the_middle_keeps_the_text_so_far() -> None:
    conversation = Conversation()
    conversation.require("regex", "[ab]{8}d")
    conversation.set("banned", "d")  # so that nothing is left behind the eighth character
    chatter = Chatter(lambda message: "abababab")
    talk = Talk(chatter, "one", "/regex off", "two", conversation=conversation)
    assert talk.noted.startswith("error: ")
    assert talk.said[0][0] == "one"
    assert talk.said[0][1] and "abababab".startswith(talk.said[0][1])
    assert talk.said[1] == ("two", "abababab")
    assert talk.shown == f"{talk.said[0][1]}\nabababab\n"


def test_a_full_context_says_what_to_do() -> None:
    chatter = Chatter(lambda message: message[:1] * 30, max_context=150)
    talk = Talk(chatter, "a", "b" * 100, "/undo", "c")
    assert re.search(
        r"error: with this message .* the context of chatter holds 150.*/undo.*/clear", talk.noted
    )
    assert talk.said == [("c", "c" * 30)]
    filled = Talk(Chatter(lambda message: "x" * 500, max_context=100), "a")
    assert "(the context of 100 tokens is full; /drop" in filled.noted


def test_an_answer_that_is_cut_off_says_what_allows_more() -> None:
    talk = Talk(Chatter(), "/set max_tokens 3", "abcdef")
    assert talk.said == [("abcdef", "ABC")]
    assert "(cut off after 3 tokens; /continue goes on, /set max" in talk.noted


@pytest.mark.slow
def test_the_chat_needs_no_web_server() -> None:
    code = (
        "import sys, mlxgen.terminal.chat\n"
        "assert not {'fastapi', 'pydantic', 'uvicorn'} & {n.split('.')[0] for n in sys.modules}"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr


def test_what_is_left_out_or_violated_is_said() -> None:
    assert list(unheld(Usage())) == []
    said = list(unheld(Usage(left_out=("format=path",), violates="it violates pattern")))
    assert "format=path" in said[0] and "it violates pattern" in said[1]


# ---- pipes ----


def piped(*lines: str, options: tuple[str, ...] = ()) -> subprocess.CompletedProcess[bytes]:
    environment = {k: v for k, v in os.environ.items() if k != "FORCE_COLOR"}
    return subprocess.run(
        [*COMMAND, *QUIET, *options],
        input="".join(f"{line}\n" for line in lines).encode(),
        capture_output=True,
        timeout=120,
        env=environment,
    )


def test_a_script_of_messages_and_commands(tmp_path: Path) -> None:
    saved, schema = tmp_path / "chat.json", tmp_path / "schema.json"
    schema.write_text('{"const": "seven"}')
    ended = piped(
        "What is the capital of France?",
        "What is the \\",
        "opposite of hot?",
        "/undo",
        "/retry",
        "/edit What is the capital of Italy?",
        f"/save {saved}",
        "/clear",
        f"/json {schema}",
        "What is the capital of France?",
        f"/load {saved}",
        '"""',
        "What is the opposite of hot?",
        '"""',
        options=("--verbose",),
    )
    assert ended.returncode == 0
    answers = ended.stdout.decode().splitlines()
    assert [line.strip() for line in answers if line.strip()] == [
        "The capital of France is Paris.",
        "The opposite of hot is cold.",
        "The capital of France is Paris.",
        "The capital of Italy is Rome.",
        '"seven"',
        "The opposite of hot is cold.",
    ]
    assert b"\x1b" not in ended.stdout + ended.stderr
    notes = ended.stderr.decode()
    assert "took back: What is the opposite of hot?" in notes
    prompts = re.findall(r"prompt: +(\d+) tokens(?: \((\d+) of them cached\))?", notes)
    assert prompts[0][1] == ""
    assert int(prompts[2][1]) == int(prompts[2][0]) - 1  # the retry
    assert [m["role"] for m in json.loads(saved.read_text())["messages"]] == ["user", "assistant"]


# ---- a terminal ----


def test_a_terminal_greets_dims_the_reasoning_and_ends_with_ctrl_d(
    terminal: Callable[..., Terminal],
) -> None:
    chat = terminal()
    assert "demo: /help lists the commands, Ctrl-D ends" in chat.until("\n> ")
    chat.type("What is the capital of France?\n")
    shown = chat.until(r"Paris\.\n.*\n> ")
    assert "<dim>This is about France. Its capital is Paris.</dim>\n\n" in shown
    assert "The capital of France is Paris.\n<dim>(context: " in shown
    assert "think" not in shown
    chat.type("\x04")
    assert chat.process.wait(60) == 0


@pytest.mark.slow
def test_a_terminal_shows_odds_branches_and_answers_as_they_are_written_if_asked(
    terminal: Callable[..., Terminal],
) -> None:
    chat = terminal(*QUIET, "--raw", "--show-probs")
    assert "probability: " in chat.until("\n> ")
    chat.type("What is the capital of France?\n")
    assert "The</dim> capital</dim>" in chat.until(r"is</dim>\.</dim>\n.*\n> ")
    chat.type("/rewind 4\n")
    chat.until(r"took back: [^>]*\n> ")
    chat.type("/instead Rome\n")
    chat.until(r"\(context: [^\n]*\n> ")
    chat.type("/bra\t\n")
    assert re.search(r"typed +\[\d\] +Rome", chat.until(r"/branches[^>]*typed[^>]*<- here\n> "))


@pytest.mark.slow
def test_ctrl_c_stops_the_answer_and_not_the_program(terminal: Callable[..., Terminal]) -> None:
    chat = terminal(*QUIET, "--ignore-eos")
    chat.until("\n> ")
    chat.type("Tell me a story about a fox.\n")
    chat.until("Once upon a time")
    chat.type("\x03")
    chat.until(r"\(stopped; /continue goes on\)\n.*\n> ")
    chat.type("/show\n")
    assert "[assistant] Once upon a time" in chat.until(r"Once upon[^>]*\n> ")
    chat.type("half a mess")
    chat.until("half a mess")
    chat.type("\x03")
    chat.until(r"\(Ctrl-D or /quit ends\)\n> ", again="\x03")
    chat.type("/undo\n")
    chat.until(r"took back: Tell me a story about a fox\.\n> ")
    chat.type("/quit\n")
    assert chat.process.wait(60) == 0


@pytest.mark.slow
def test_edit_offers_the_last_message_where_readline_is(
    terminal: Callable[..., Terminal],
) -> None:
    pytest.importorskip("readline")
    chat = terminal(*QUIET)
    chat.until("\n> ")
    chat.type("What is the capital of France?\n")
    chat.until(r"Paris\.\n.*\n> ")
    chat.type("/edit\n")
    chat.until(r"> What is the capital of France\?")
    chat.type("\x7f" * len("France?") + "Italy?\n")
    chat.until(r"The capital of Italy is Rome\.\n.*\n> ")
    chat.type("\x1b[A\x1b[A\x1b[A\n")  # three lines up in the history
    chat.until(r"The capital of France is Paris\.\n.*\n> ")
