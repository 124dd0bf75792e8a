"""Lines that become messages: from pipes in this process, and at terminals with the demo model."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import re
import subprocess
import sys
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

from ..fakes.chatting import Chatter
from ..processes import run
from .conftest import COMMAND, Talking, Terminal

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


@pytest.mark.parametrize(
    ("lines", "messages"),
    [
        (["one", "", "two"], ["one", "", "two"]),
        (["one\\", "two\\", "three", "four"], ["one\ntwo\nthree", "four"]),
        (["/system one\\", "two"], ["/system one\ntwo"]),
        (["one\\"], ["one"]),
    ],
)
def test_a_line_is_a_message_and_a_backslash_goes_on(lines: list[str], messages: list[str]) -> None:
    assert typed(*lines) == [(message, False) for message in messages]


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        (['"""', "one", "two", '"""'], "one\ntwo"),
        (['"""one', 'two"""'], "one\ntwo"),
        (['"""one"""'], "one"),
        (['"""', "", "one", "", '"""'], "\none\n"),
        (['"""', "one\\", '"two"', '"""'], 'one\\\n"two"'),
        (['""""""'], ""),
        (['"""', "one", "two"], "one\ntwo"),
        (['"""pasted\nlines\\\n', '"""'], "pasted\nlines\\\n"),
        (["one\ntwo\\\nthree"], "one\ntwo\\\nthree"),
        (['"""\none\n"""'], "one"),
    ],
)
def test_a_block_and_what_was_pasted_are_one_message(lines: list[str], text: str) -> None:
    assert typed(*lines) == [(text, True)]
    if lines[-1].endswith('"""'):
        assert typed(*lines, "next") == [(text, True), ("next", False)]


@given(st.text().filter(lambda text: '"""' not in text and not text.endswith('"')))
@example("\n")
@example("/quit\\")
def test_every_text_can_be_a_block(text: str) -> None:
    assert typed('"""', *text.split("\n"), '"""') == [(text, True)]


def test_a_pipe_may_have_any_line_ends_and_a_person_is_prompted(talk: Talking) -> None:
    lines = (b"one\r", "é\\", "two", '"""', "three", '"""')
    done = talk(Chatter().lm, *lines)
    assert [message for message, _ in done.said] == ["one", "é\ntwo", "three"]


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


def test_a_script_of_messages_and_commands(tmp_path: Path) -> None:
    saved, schema = tmp_path / "chat.json", tmp_path / "schema.json"
    schema.write_text('{"const": "seven"}')
    lines = (
        FRANCE,
        *("What is the \\", "opposite of hot?", "/undo", "/retry"),
        *("/edit What is the capital of Italy?", f"/save {saved}", "/clear"),
        *(f"/json {schema}", FRANCE, f"/load {saved}", '"""', "What is the opposite of hot?"),
    )
    ended = run([*COMMAND, *QUIET], "\n".join(lines))
    assert ended.returncode == 0
    assert [line.strip() for line in ended.stdout.splitlines() if line.strip()] == [
        "The capital of France is Paris.",
        "The opposite of hot is cold.",
        "The capital of France is Paris.",
        "The capital of Italy is Rome.",
        '"seven"',
        "The opposite of hot is cold.",
    ]
    assert "\x1b" not in ended.stdout + ended.stderr
    assert "took back: What is the opposite of hot?" in ended.stderr


@pytest.mark.slow
def test_the_chat_needs_no_web_server() -> None:
    code = (
        "import sys, mlxgen.terminal.chat\n"
        "assert not {'fastapi', 'pydantic', 'uvicorn'} & {n.split('.')[0] for n in sys.modules}"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


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
    chat.until("\n> ")
    if readline:
        chat.type("\x1b[200~" + PASTED.replace("\n", "\r") + "\x1b[201~\n")
    else:  # only whole lines can be seen to wait
        chat.type(f"{PASTED}\n")
    chat.until(r"\(context: ")
    assert asked(state) == [PASTED]


def test_a_chat_is_dimmed_kept_and_resumed(terminal: Callable[..., Terminal], state: Path) -> None:
    chat = terminal()
    assert "demo: /help lists the commands, Ctrl-D ends" in chat.until("\n> ")
    chat.type(f"{FRANCE}\n")
    shown = chat.until(ANSWERED)
    assert "<dim>This is about France. Its capital is Paris.</dim>\n\n" in shown
    assert "The capital of France is Paris.\n<dim>(context: " in shown
    assert "think" not in shown
    chat.type("\x04")
    chat.until("--resume goes on")
    assert chat.process.wait(60) == 0
    assert state.stat().st_mode & 0o077 == 0
    chat = terminal(command=(*COMMAND[:-1], "--resume", *QUIET))
    assert f"going on after: {FRANCE}" in chat.until("\n> ")
    chat.type("/show\n")
    chat.until(rf"\[assistant\] {PARIS}")
    chat.type("What is the capital of Italy?\n")
    chat.until(r"\(context: ")
    assert asked(state) == [FRANCE, "What is the capital of Italy?"]


def test_a_form_keeps_its_spaces(terminal: Callable[..., Terminal], state: Path) -> None:
    chat = terminal(*QUIET)
    chat.until("\n> ")
    chat.type('/regex \\{\\n    "name": "[A-Z][a-z]{1,9}"\\n\\}\n')
    chat.type("Who lives in Rome?\n")
    assert '{\n    "name": "' in chat.until(r"\(context: ")


@pytest.mark.slow
def test_a_terminal_shows_odds_branches_and_answers_as_they_are_written_if_asked(
    terminal: Callable[..., Terminal],
) -> None:
    chat = terminal(*QUIET, "--raw", "--show-probs")
    assert "probability: " in chat.until("\n> ")
    chat.type(f"{FRANCE}\n")
    assert "The</dim> capital</dim>" in chat.until(r"is</dim>\.</dim>\n.*\n> ")
    chat.type("/rewind 4\n")
    chat.until(r"took back: [^>]*\n> ")
    chat.type("/instead Rome\n")
    chat.until(ANSWERED)
    chat.type("/bra\t\n")
    assert re.search(r"typed +\[\d\] +Rome", chat.until(r"/branches[^>]*typed[^>]*<- here\n> "))


def test_one_answer_has_colours_and_a_line_of_its_own(terminal: Callable[..., Terminal]) -> None:
    options = ("--raw", "--show-probs", "--max-tokens", "5", "--ignore-eos", "so")
    one = terminal(*options, command=("-m", "mlxgen.generate"))
    assert re.search(r"probability: .* 90% ", one.until(r" less </dim>\n(.+</dim>)+\n"))
    assert one.process.wait(60) == 0


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
    chat.type(f"{FRANCE}\n")
    chat.until(rf"{PARIS}\n.*\n> ")
    chat.type("/edit\n")
    chat.until(r"> What is the capital of France\?")
    chat.type("\x7f" * len("France?") + "Italy?\n")
    chat.until(r"The capital of Italy is Rome\.\n.*\n> ")
    chat.type("\x1b[A\x1b[A\x1b[A\n")  # three lines up in the history
    chat.until(rf"{PARIS}\n.*\n> ")
