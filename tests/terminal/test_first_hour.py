"""What a person types in the first hour, typed at a terminal: in tmux, or in a bare pty."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxgen.generate import DEMO
from mlxgen.terminal.report import NAME
from mlxgen.terminal.screens import Wrapper

from .test_converse import Terminal, interruptible  # noqa: F401 (a fixture)

QUIET = ("--chat-template-args", '{"enable_thinking": false}')
CHAT = (sys.executable, "-m", "mlxgen.generate", "--chat", *QUIET)
PASTED = "What is the capital of France?\n/clear\nlast line"
WITH_TMUX = pytest.mark.skipif(shutil.which("tmux") is None, reason="needs tmux")


class Tmux:
    """A program in a terminal of tmux, with its screen."""

    def __init__(self, folder: Path, command: tuple[str, ...], columns: int = 70) -> None:
        self._socket = str(folder / "tmux")
        kept = {
            name: os.environ[name]
            for name in ("XDG_STATE_HOME", "PATH", "PYTHONPATH")
            if name in os.environ
        }
        words = [
            "env",
            "-u",
            "NO_COLOR",
            "-u",
            "COLUMNS",
            *(f"{name}={value}" for name, value in kept.items()),
        ]
        line = shlex.join([*words, *command]) + "; echo ENDED; sleep 600"
        self("new-session", "-d", "-x", str(columns), "-y", "50", line)

    def __call__(self, *arguments: str, text: str | None = None) -> str:
        command = ["tmux", "-S", self._socket, "-f", os.devnull, *arguments]
        done = subprocess.run(command, input=text, capture_output=True, text=True, check=True)
        return done.stdout

    def type(self, text: str, *keys: str) -> None:
        self("send-keys", "-l", text)
        self("send-keys", *(keys or ("Enter",)))

    def paste(self, text: str) -> None:
        self("load-buffer", "-", text=text)
        self("paste-buffer", "-p")  # with the marks of a paste, if the program wants them

    def until(self, text: str, times: int = 1) -> str:
        """The screen once a text is there."""
        shown = ""
        for _ in range(600):
            shown = self("capture-pane", "-p")
            if shown.count(text) >= times:
                return shown
            time.sleep(0.1)
        raise AssertionError(f"{text!r} does not come after:\n{shown}")

    def close(self) -> None:
        self("kill-server")


@pytest.fixture
def tmux(tmp_path: Path) -> Iterator[Callable[..., Tmux]]:
    opened: list[Tmux] = []

    def start(*options: str, command: tuple[str, ...] = CHAT, columns: int = 70) -> Tmux:
        folder = tmp_path / str(len(opened))
        folder.mkdir()
        opened.append(Tmux(folder, (*command, *options), columns))
        return opened[-1]

    yield start
    for each in opened:
        each.close()


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home for the kept chat of this test alone."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "mlxgen" / "last_chat.json"


def said(state: Path) -> list[str]:
    messages = json.loads(state.read_text(encoding="utf-8"))["messages"]
    return [message["content"] for message in messages if message["role"] == "user"]


@WITH_TMUX
@pytest.mark.parametrize("readline", [True, False])
def test_pasted_lines_are_one_message(
    readline: bool, tmux: Callable[..., Tmux], state: Path
) -> None:
    command = CHAT
    if not readline:
        code = "import sys; sys.modules['readline'] = None; from mlxgen import generate"
        command = (sys.executable, "-c", f"{code}; sys.exit(generate.main())", *CHAT[3:])
    chat = tmux("--max-tokens", "8", command=command)
    chat.until("Ctrl-D ends")
    if readline:
        chat.paste(PASTED)
        chat.type("")
    else:  # only whole lines can be seen to wait
        chat.paste(f"{PASTED}\n")
    chat.until("(context:")
    assert said(state) == [PASTED]


@pytest.mark.slow
@pytest.mark.usefixtures("interruptible")
def test_pasted_lines_are_one_message_in_a_bare_terminal(state: Path) -> None:
    pytest.importorskip("readline")
    chat = Terminal(*QUIET, "--max-tokens", "8")
    chat.until("\n> ")
    chat.type("\x1b[200~" + PASTED.replace("\n", "\r") + "\x1b[201~\n")
    chat.until(r"\(context: ")
    chat.close()
    assert said(state) == [PASTED]


@WITH_TMUX
def test_a_chat_is_kept_and_resumed(tmux: Callable[..., Tmux], state: Path) -> None:
    chat = tmux()
    chat.until("Ctrl-D ends")
    chat.type("What is the capital of France?")
    chat.until("(context:")
    chat.type("", "C-d")
    assert "--resume goes on" in chat.until("ENDED")
    assert state.stat().st_mode & 0o077 == 0
    command = (sys.executable, "-m", "mlxgen.generate", "--resume")
    chat = tmux(command=command)
    assert "going on after: What is the capital of France?" in chat.until("Ctrl-D ends")
    chat.type("/show")
    assert "[assistant] The capital of France is Paris." in chat.until("[assistant]")
    chat.type("What is the capital of Italy?")
    chat.until("(context:")
    assert said(state) == ["What is the capital of France?", "What is the capital of Italy?"]


@WITH_TMUX
def test_a_form_keeps_its_spaces_and_commands_explain_themselves(
    tmux: Callable[..., Tmux], state: Path
) -> None:
    chat = tmux()
    chat.until("Ctrl-D ends")
    chat.type(r'/regex \{\n    "name": "[A-Z][a-z]{1,9}"\n\}')
    chat.type("Who lives in Rome?")
    assert '\n{\n    "name": "' in chat.until("(context:")
    chat.type("/help rewind")
    assert "/rewind @12" in chat.until("/continue goes on")
    chat.type("/set foo 1")
    chat.until("foo: there is no such option; /set lists the options")
    chat.type("/set temp 1")
    chat.until("did you mean temperature?")


@WITH_TMUX
def test_words_are_not_broken_inside(tmux: Callable[..., Tmux]) -> None:
    line = "Tell me a story about a fox."
    command = (sys.executable, "-m", "mlxgen.generate", "--seed", "1", *QUIET)
    shown = tmux(line, command=command, columns=24).until("ENDED")
    plain = subprocess.run([*command, line], capture_output=True, text=True, check=True).stdout
    words = set(plain.split())
    note, _, story = shown.partition("Once")
    told = ["Once", *story.partition("ENDED")[0].split()]
    assert len(told) > 20 and set(told) <= words
    known = {f"{NAME}:", *DEMO.split()}
    assert all(word in known or word in "mlx-community/Qwen3-4B-4bit" for word in note.split())


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


def test_text_from_a_pipe_is_added_to_the_prompt_or_is_the_prompt(tmp_path: Path) -> None:
    question = "What is the capital of Italy?"
    alone = run(*QUIET, question)
    assert alone.stdout == "The capital of Italy is Rome.\n"
    assert run(*QUIET, given=question).stdout == alone.stdout
    added = run(*QUIET, "--verbose", "What is the capital", given="of Italy?")
    together = run(*QUIET, "--verbose", "What is the capital\n\nof Italy?")
    prompts = [done.stderr.partition("prompt: ")[2].split()[0] for done in (added, together)]
    assert added.stdout == together.stdout and prompts[0] == prompts[1]
    assert run(*QUIET, question, given="").stdout == alone.stdout
    nothing = run()
    assert nothing.returncode == 2 and "there is no prompt; pass one" in nothing.stderr


def test_other_programs_names_work_and_a_count_of_one_is_singular() -> None:
    done = run("-p", "Hello", "--temp", "0", "-n", "1")
    assert done.returncode == 0 and "stopped after 1 token;" not in done.stderr
    assert "drafted" in run("--raw", "-n", "1", "--verbose", "Hello").stderr
    assert "generation:  1 token\n" in run("--raw", "-n", "1", "--verbose", "Hello").stderr
    assert "stopped after 1 token" not in run("--raw", "-n", "2", "Hello").stderr
