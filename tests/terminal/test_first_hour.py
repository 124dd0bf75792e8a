"""What a person types in the first hour, at a terminal and in pipes."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import mlxgen
from mlxgen import Chat
from mlxgen.terminal.screens import Wrapper

from .conftest import Terminal

QUIET = ("--chat-template-args", '{"enable_thinking": false}')
CHAT = (sys.executable, "-m", "mlxgen.generate", "--chat", *QUIET)
PASTED = "What is the capital of France?\n/clear\nlast line"


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home for the kept chat of this test alone."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "mlxgen" / "last_chat.json"


def said(state: Path) -> list[str]:
    messages = json.loads(state.read_text(encoding="utf-8"))["messages"]
    return [message["content"] for message in messages if message["role"] == "user"]


@pytest.mark.parametrize("readline", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_pasted_lines_are_one_message(
    readline: bool, terminal: Callable[..., Terminal], state: Path
) -> None:
    command = CHAT
    if not readline:
        code = "import sys; sys.modules['readline'] = None; from mlxgen import generate"
        command = (sys.executable, "-c", f"{code}; sys.exit(generate.main())", *CHAT[3:])
    elif not importlib.util.find_spec("readline"):
        pytest.skip("needs readline")
    chat = terminal("--max-tokens", "8", command=command)
    chat.until("\n> ")
    if readline:
        chat.type("\x1b[200~" + PASTED.replace("\n", "\r") + "\x1b[201~\n")
    else:  # only whole lines can be seen to wait
        chat.type(f"{PASTED}\n")
    chat.until(r"\(context: ")
    assert said(state) == [PASTED]


def test_a_chat_is_kept_and_resumed(terminal: Callable[..., Terminal], state: Path) -> None:
    chat = terminal(*QUIET)
    chat.until("\n> ")
    chat.type("What is the capital of France?\n")
    chat.until(r"\(context: [^\n]*\n> ")
    chat.type("\x04")
    chat.until("--resume goes on")
    assert state.stat().st_mode & 0o077 == 0
    chat = terminal(command=(sys.executable, "-m", "mlxgen.generate", "--resume"))
    assert "going on after: What is the capital of France?" in chat.until("\n> ")
    chat.type("/show\n")
    chat.until(r"\[assistant\] The capital of France is Paris\.")
    chat.type("What is the capital of Italy?\n")
    chat.until(r"\(context: ")
    assert said(state) == ["What is the capital of France?", "What is the capital of Italy?"]


def test_a_form_keeps_its_spaces_and_commands_explain_themselves(
    terminal: Callable[..., Terminal], state: Path
) -> None:
    chat = terminal(*QUIET)
    chat.until("\n> ")
    chat.type('/regex \\{\\n    "name": "[A-Z][a-z]{1,9}"\\n\\}\n')
    chat.type("Who lives in Rome?\n")
    assert '{\n    "name": "' in chat.until(r"\(context: ")
    chat.type("/help rewind\n")
    assert "/rewind @12" in chat.until("/continue goes on")
    chat.type("/set foo 1\n")
    chat.until("foo: there is no such option; /set lists the options")
    chat.type("/set temp 1\n")
    chat.until(r"did you mean\s+temperature\?")


@given(st.lists(st.text(alphabet="ab \n", max_size=5)), st.integers(3, 12))
def test_lines_break_between_words_for_any_pieces(pieces: list[str], columns: int) -> None:
    wrapper = Wrapper(lambda: columns)
    screen = [""]
    for piece in pieces:
        written = wrapper.push(piece)
        while written:
            if written.startswith("\x1b["):
                back, _, written = written[2:].partition("D\x1b[K")
                screen[-1] = screen[-1][: -int(back)]
            elif written[0] == "\n":
                screen.append("")
                written = written[1:]
            else:
                screen[-1] += written[0]
                written = written[1:]
    text = "".join(pieces)
    assert "\n".join(screen).split() == text.split()
    for line in screen:
        if not line.startswith(" ") and all(len(word) <= columns for word in line.split()):
            assert len(line.rstrip()) <= columns


# ---- pipes ----


def run(*arguments: str, given: str | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mlxgen.generate", *arguments]
    stdin = {"stdin": subprocess.DEVNULL} if given is None else {"input": given}
    return subprocess.run(command, capture_output=True, text=True, **stdin)


def test_text_from_a_pipe_is_added_to_the_prompt_or_is_the_prompt() -> None:
    question = "What is the capital of Italy?"
    assert run(*QUIET, question, given="").stdout == "The capital of Italy is Rome.\n"
    assert run(*QUIET, given=question).stdout == "The capital of Italy is Rome.\n"
    added = run(*QUIET, "--verbose", "What is the capital", given="of Italy?")
    message = {"role": "user", "content": "What is the capital\n\nof Italy?"}
    together = Chat([message], template={"enable_thinking": False})
    count = len(together.tokens(mlxgen.load().vocabulary))
    assert added.stderr.partition("prompt: ")[2].split()[0] == f"{count}"
    nothing = run()
    assert nothing.returncode == 2 and "there is no prompt; pass one" in nothing.stderr


def test_other_programs_names_work_and_a_count_of_one_is_singular() -> None:
    done = run("-p", "Hello", "--temp", "0", "-n", "1")
    assert done.returncode == 0 and "stopped after 1 token;" not in done.stderr
    told = run("--raw", "-n", "1", "--verbose", "Hello").stderr
    assert "drafted" in told and "generation:  1 token\n" in told
