"""Lines that become messages, and chats at terminals with the demo model."""

from __future__ import annotations

import contextlib
import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mlxgen.terminal import reader
from mlxgen.terminal.commands import completions
from mlxgen.terminal.reader import Reader, Typed, terminal_reader

from ..processes import run
from ..tables import table
from .conftest import COMMAND, Terminal

pytestmark = pytest.mark.whole
QUIET = ("--chat-template-args", '{"enable_thinking": false}')
FRANCE, PARIS = "What is the capital of France?", r"The capital of France is Paris\."
ANSWERED = r"\(context: [^\n]*\n> "
PASTED = f"{FRANCE}\n/clear\nlast line"


def typed(*lines: str) -> list[Typed]:
    left = list(lines)

    def line(prompt: str) -> str:
        if not left:
            raise EOFError
        return left.pop(0)

    found, one = [], Reader(line)
    with contextlib.suppress(EOFError):
        while True:
            found.append(one.read())
    return found


@pytest.mark.parametrize("case", table("typed"), ids=lambda case: repr(case["lines"]))
def test_lines_become_messages_and_blocks_or_pasted_lines_one(case: dict[str, Any]) -> None:
    assert typed(*case["lines"]) == [Typed(*message) for message in case["messages"]]


@given(st.text().filter(lambda text: '"""' not in text and not text.endswith('"')))
@example("\n")
@example("/quit\\")
def test_every_text_can_be_a_block(text: str) -> None:
    assert typed('"""', *text.split("\n"), '"""') == [(text, True)]


def test_commands_files_and_arguments_are_completed(tmp_path: Path) -> None:
    assert set(completions("/re")) == {"/retry ", "/rewind ", "/regex "}
    assert completions("/set temp") == ["temperature"]
    assert "rewind" in completions("/help ")
    assert completions("/tokens ") == ["all"] and completions("/regex o") == ["off"]
    assert completions("hello") == [] == completions("/set temperature 0")
    (tmp_path / "chat.json").touch()
    (tmp_path / "chats").mkdir()
    assert completions(f"/load {tmp_path}/cha") == [f"{tmp_path}/chat.json", f"{tmp_path}/chats/"]
    assert completions(f"/load {tmp_path}/none/x") == [] == completions("/load ~nobody-at-all/x")


@pytest.mark.parametrize(("text", "kept"), [("one", ["one"]), ("one\ntwo", [])])
def test_libedit_which_fills_no_line_has_the_message_an_arrow_away(
    text: str, kept: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    history: list[str] = []
    libedit = SimpleNamespace(
        __doc__="line editing using libedit.",
        add_history=history.append,
        set_completer_delims=len,
        set_completer=callable,
        parse_and_bind=len,
    )
    monkeypatch.setattr(reader, "_readline", lambda: libedit)
    assert terminal_reader(lambda line: []).edit(text) is None
    assert history == kept
    assert ("the arrow up brings the message back\n" in capsys.readouterr().err) == bool(kept)


# ---- the demo model ----


def test_a_script_of_messages_and_commands() -> None:
    lines = (FRANCE, "/edit What is the capital \\", "of Italy?", "/clear", '"""', FRANCE)
    ended = run([*COMMAND, *QUIET], "\n".join(lines))
    told = [line.strip() for line in ended.stdout.splitlines() if line.strip()]
    answers = [f"The capital of {name}." for name in ("France is Paris", "Italy is Rome")]
    assert (ended.returncode, told) == (0, [*answers, answers[0]])
    assert "\x1b" not in ended.stdout + ended.stderr
    assert ended.stderr.endswith("\na new conversation; the settings stay\n")


# ---- terminals ----


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home for the kept chat of this test alone."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "mlxgen" / "last_chat.json"


def asked(state: Path) -> list[str]:
    messages = json.loads(state.read_text(encoding="utf-8"))["messages"]
    return [message["content"] for message in messages if message["role"] == "user"]


@pytest.mark.parametrize("readline", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_pasted_lines_are_one_message(
    readline: bool, terminal: Callable[..., Terminal], state: Path
) -> None:
    how: dict[str, Any] = {}
    if not readline:
        code = "import sys; sys.modules['readline'] = None; from mlxgen import generate"
        how = {"command": ("-c", f"{code}; sys.exit(generate.main())", "--chat")}
    elif not importlib.util.find_spec("readline"):
        pytest.skip("needs readline")
    chat = terminal(*QUIET, "--max-tokens", "8", **how)
    if readline:
        chat.type("\x1b[200~" + PASTED.replace("\n", "\r") + "\x1b[201~\n")
    else:  # only whole lines can be seen to wait
        chat.type(f"{PASTED}\n")
    chat.until(r"\(context: ")
    assert asked(state) == [PASTED]


def test_a_chat_is_dimmed_kept_and_resumed(terminal: Callable[..., Terminal], state: Path) -> None:
    chat = terminal()
    assert "demo: /help lists the commands, Ctrl-D ends" in chat.greeting
    shown = chat.ask(FRANCE, ANSWERED)
    assert "<dim>This is about France. Its capital is Paris.</dim>\n\n" in shown
    assert "The capital of France is Paris.\n<dim>(context: " in shown
    assert "think" not in shown
    chat.type("\x04")
    chat.until("--resume goes on")
    assert chat.process.wait(60) == 0
    assert state.stat().st_mode & 0o077 == 0
    chat = terminal(command=(*COMMAND[:-1], "--resume", *QUIET))
    assert f"going on after: {FRANCE}" in chat.greeting
    chat.ask("/show", rf"\[assistant\] {PARIS}")
    chat.ask("What is the capital of Italy?", r"\(context: ")
    assert asked(state) == [FRANCE, "What is the capital of Italy?"]


def test_a_form_keeps_its_spaces(terminal: Callable[..., Terminal], state: Path) -> None:
    chat = terminal(*QUIET)
    chat.type('/regex \\{\\n    "name": "[A-Z][a-z]{1,9}"\\n\\}\n')
    assert '{\n    "name": "' in chat.ask("Who lives in Rome?", r"\(context: ")


@pytest.mark.slow
def test_ctrl_c_stops_the_answer_and_not_the_program(terminal: Callable[..., Terminal]) -> None:
    chat = terminal(*QUIET, "--ignore-eos")
    chat.ask("Tell me a story about a fox.", "Once upon a time")
    chat.type("\x03")
    chat.until(r"\(stopped; /continue goes on\)\n.*\n> ")
    assert "[assistant] Once upon a time" in chat.ask("/show", r"Once upon[^>]*\n> ")
    chat.type("half a mess")
    chat.until("half a mess")
    chat.type("\x03")
    chat.until(r"\(Ctrl-D or /quit ends\)\n> ", again="\x03")
    chat.ask("/und\t", r"took back: Tell me a story about a fox\.\n> ")
    chat.type("/quit\n")
    assert chat.process.wait(60) == 0


@pytest.mark.slow
def test_edit_offers_the_last_message_where_readline_is(
    terminal: Callable[..., Terminal],
) -> None:
    pytest.importorskip("readline")
    chat = terminal(*QUIET)
    chat.ask(FRANCE, rf"{PARIS}\n.*\n> ")
    chat.ask("/edit", r"> What is the capital of France\?")
    chat.ask("\x7f" * len("France?") + "Italy?", r"The capital of Italy is Rome\.\n.*\n> ")
    chat.ask("\x1b[A\x1b[A\x1b[A", rf"{PARIS}\n.*\n> ")  # three lines up in the history
