"""What can be said to the chat itself."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

import mlxgen
from mlxgen import OptionError, StateError
from mlxgen.terminal.answer import Answerer
from mlxgen.terminal.commands import COMMANDS, read_value, run_command
from mlxgen.terminal.conversation import Conversation
from mlxgen.terminal.converse import TerminalChat
from mlxgen.terminal.reader import Typed


class Person:
    """Types what a test says, and sees what is told."""

    def __init__(self) -> None:
        self.edits: list[str] = []  # what was offered for editing
        self.edited: str | None = None
        self.next = ""

    def read(self) -> Typed:
        return Typed(self.next)

    def edit(self, text: str) -> str | None:
        self.edits.append(text)
        return self.edited


class Host(TerminalChat):
    """A conversation of ``said`` messages whose model answers with the number of the answer."""

    def __init__(self, *said: str) -> None:
        self.person, self.told = Person(), io.StringIO()
        no_model: Any = None
        super().__init__(
            no_model, Conversation(), self.person, run_command, io.StringIO(), self.told
        )
        self.answers = 0
        self.refuses: Exception | None = None
        for message in said:
            self.conversation.ask(message)
            self.answer()

    def freed(self, count: int) -> int:
        return count

    def check(self, conversation: Conversation) -> None:
        if self.refuses is not None:
            raise self.refuses

    def answer(self) -> None:
        self.answers += 1
        self.conversation.answered(str(self.answers))

    @property
    def said(self) -> list[tuple[str, str]]:
        return [(exchange.message, exchange.answer) for exchange in self.conversation.exchanges]

    def does(self, *lines: str) -> str:
        """What is told in answer to commands."""
        self.told.seek(0)
        self.told.truncate()
        for line in lines:
            run_command(self, line)
        return self.told.getvalue().removesuffix("\n")


# ---- what was said ----


def test_a_loaded_conversation_goes_on_with_the_defaults_of_this_model(tmp_path: Path) -> None:
    host = Host("a")
    host.conversation.defaults = {"temperature": 0.5}
    host.does(f"/save {tmp_path / 'c.json'}", f"/load {tmp_path / 'c.json'}")
    assert host.does("/set temperature") == "  temperature          0.5"


def test_undo_takes_back_the_last_exchange_and_says_which() -> None:
    host = Host("a", "b " * 50)
    assert host.does("/undo").startswith("took back: b b b")
    assert len(host.told.getvalue()) < 80
    assert host.said == [("a", "1")]
    host.does("/undo")
    with pytest.raises(StateError, match="there are no messages yet"):
        host.does("/undo")


def test_retry_asks_again_and_says_where_that_changes_nothing() -> None:
    host = Host("a")
    assert "temperature is 0" in host.does("/retry")
    assert host.said == [("a", "2")]
    assert "seed is set" in host.does("/set temperature 1", "/set seed 5", "/retry")
    assert "stays the same" not in host.does("/set seed default", "/retry")
    with pytest.raises(StateError):
        Host().does("/retry")


def test_edit_takes_a_text_or_offers_the_message_or_asks_for_another_one() -> None:
    host = Host("a", "b")
    host.does("/edit c d")
    assert host.said == [("a", "1"), ("c d", "3")] and host.person.edits == []
    host.person.edited = "c d, edited"
    assert host.does("/edit") == ""
    assert host.person.edits == ["c d"] and host.said[1:] == [("c d, edited", "4")]
    host.person.edited, host.person.next = None, "e"  # the reader cannot
    assert host.does("/edit") == "the message was:\nc d, edited\nwrite the new one:"
    host.person.next = " "
    assert host.does("/edit").endswith("nothing changed") and host.said[1:] == [("e", "5")]


def test_clear_forgets_and_show_shows() -> None:
    host = Host("a")
    host.does("/system be brief")
    assert host.does("/show") == "[system] be brief\n[user] a\n[assistant] 1"
    assert host.does("/clear", "/show") == (
        "a new conversation; the settings stay\n[system] be brief"
    )
    assert host.does("/system off") == "system message: none"
    assert host.does("/show") == "no messages yet"


# ---- how answers are made ----


def test_set_sets_shows_and_takes_back() -> None:
    host = Host()
    assert host.does("/set temperature 0.3") == "* temperature          0.3"
    assert host.does("/set top-k 5") == "* top_k                5"
    assert host.does("/set temperature") == "* temperature          0.3"
    assert host.does("/set temperature default") == "  temperature          0.0"
    assert host.conversation.settings == {"top_k": 5}
    listed = host.does("/set")
    assert "* top_k                5\n" in listed
    assert "  max_tokens           null\n" in listed
    assert len(listed.splitlines()) == len(host.conversation.values()) + 1


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("/set temperature -1", "temperature: expected a number from 0 to 100, got -1"),
        ("/set temperature hot", "temperature: expected a number from 0 to 100, got 'hot'"),
        ("/set temprature 1", "temprature: there is no such option; did you mean temperature"),
        ("/set temprature", "temprature: there is no such option; did you mean temperature"),
        ("/set hooks 1", "hooks: only a program"),
        ("/set filters", "filters: use /json"),
        ("/set draft huge", "draft: expected a LanguageModel"),
        ("/set seed NaN", "seed: expected an integer, got nan"),
        ("/set close_json true", "close_json: needs a filter"),
        ("/sett temperature", "/sett: there is no such command; did you mean /set?"),
        ("/what", r'/what: .*/help lists.*"""/what""" is a message'),
        ("/undo 3", "/undo: expected no argument"),
        ("/save", "/save: expected a file name"),
        ("/save /nowhere/chat.json", "/save: .*cannot be written: No such file"),
        ("/load", "/load: expected a file name"),
        ("/load /nowhere.json", "/load: /nowhere.json cannot be read: No such file"),
        ("/json /nowhere.json", "/json: /nowhere.json cannot be read: No such file"),
        ("/lark /nowhere.lark", "/lark: /nowhere.lark cannot be read: No such file"),
    ],
)
def test_what_is_wrong_is_named_and_changes_nothing(line: str, message: str) -> None:
    host = Host("a")
    before = host.conversation.as_json()
    with pytest.raises(OptionError, match=message):
        host.does(line)
    assert host.conversation.as_json() == before


def test_what_the_model_cannot_follow_changes_nothing(tmp_path: Path) -> None:
    host = Host("a")
    host.does(f"/save {tmp_path / 'chat.json'}", "/undo")
    before = host.conversation.as_json()
    host.refuses = OptionError("logit_bias", "no such token")
    for line in ('/set logit_bias {"5": 1}', "/regex a+", f"/load {tmp_path / 'chat.json'}"):
        with pytest.raises(OptionError, match="no such token"):
            host.does(line)
        assert host.conversation.as_json() == before


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0.3", 0.3),
        ("7", 7),
        ("true", True),
        ('["a", "b"]', ["a", "b"]),
        ('"\\n"', "\n"),
        ("END", "END"),
        ('{"5": -1}', {"5": -1}),
        ("default", None),
        ("none", None),
        ("off", None),
        ('"off"', "off"),
    ],
)
def test_values_are_json_or_the_text_itself(text: str, value: object) -> None:
    assert read_value(text) == value


def test_forms_come_from_files_or_the_line_and_go_again(tmp_path: Path) -> None:
    host = Host()
    (tmp_path / "my schema.json").write_text('{"type": "array"}')
    (tmp_path / "grammar.lark").write_text('start: "a"')
    (tmp_path / "broken.json").write_text("{")
    assert host.does("/json") == "json: off"
    assert host.does(f"/json {tmp_path / 'my schema.json'}") == 'json: {"type": "array"}'
    assert host.does('/json {"type": "object"}') == 'json: {"type": "object"}'
    assert host.does("/regex a{3} b") == "regex: a{3} b"
    assert host.does(f"/lark {tmp_path / 'grammar.lark'}") == 'lark: start: "a"'
    assert set(host.conversation.forms) == {"json", "regex", "lark"}
    with pytest.raises(OptionError, match=r"/json: .*broken.json"):
        host.does(f"/json {tmp_path / 'broken.json'}")
    assert host.does("/json off", "/regex off", "/lark off") == "json: off\nregex: off\nlark: off"
    assert host.conversation.form is None


# ---- files ----


def test_what_was_saved_can_be_loaded_and_saved_again(tmp_path: Path) -> None:
    path = tmp_path / "my chat.json"
    host = Host("a", "é")
    host.does("/system s", "/set temperature 0.3", "/regex a+")
    before = host.conversation.as_json()
    assert host.does(f"/save {path}") == f"saved to {path}: 2 exchanges"
    assert json.loads(path.read_text(encoding="utf-8"))["settings"] == {"temperature": 0.3}
    other = Host("b")
    assert other.does(f"/load {path}") == f"loaded {path}: 2 exchanges"
    assert other.conversation.as_json() == before
    assert other.does("/undo", f"/save {path}").endswith("1 exchange")
    path.write_text("mine")
    with pytest.raises(OptionError, match=r"/save: .*exists and is not a conversation"):
        other.does(f"/save {path}")
    assert path.read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir()] == ["my chat.json"]


def test_load_names_the_file_and_the_part_that_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "chat.json"
    path.write_text('{"messages": [{"role": "owl", "content": ""}]}')
    with pytest.raises(
        OptionError,
        match=r"/load: .*chat.json: messages\[0\].role: expected user or system, got 'owl'",
    ):
        Host("a").does(f"/load {path}")
    path.write_bytes(b"\xff")
    with pytest.raises(OptionError, match=r"/load: .*chat.json cannot be read: it is not UTF-8"):
        Host("a").does(f"/load {path}")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[" * 100_000 + "]" * 100_000,
        '{"messages": [], "template": {"a": ' + "[" * 100_000 + "]" * 100_000 + "}}",
        '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": null}]}',
        '{"messages": [{"role": "user", "content": " "}]}',
        r'{"messages": [{"role":"user","content":"a"}, {"role":"assistant","content":"\ud800"}]}',
        r'{"messages": [], "settings": {"stop": "\ud800"}}',
        '{"messages": [], "settings": {"seed": ' + "9" * 5000 + "}}",
        '{"messages": [], "settings": {"temperature": NaN}}',
        '{"messages": [], "settings": 5}',
        '{"messages": [], "forms": {"regex": 5}}',
        '{"messages": [], "forms": {"regex": "("}}',
        '{"messages": {}, "hooks": []}',
    ],
)
def test_a_malformed_conversation_is_refused_with_its_file_and_changes_nothing(
    text: str, tmp_path: Path
) -> None:
    path = tmp_path / "chat.json"
    path.write_text(text)
    host = Host("a")
    before = host.conversation
    answerer = Answerer(mlxgen.load())
    host.check = answerer.check  # type: ignore[method-assign]
    with pytest.raises(OptionError, match=r"/load: .*chat.json"):
        host.does(f"/load {path}")
    assert host.conversation is before and host.said == [("a", "1")]


@pytest.mark.parametrize("name", ["no\0file", "x" * 5000, "/dev/null/file", "/"])
def test_a_path_that_is_no_files_is_named(name: str) -> None:
    for command in ("save", "load", "json", "lark"):
        with pytest.raises(OptionError, match=f"/{command}: "):
            Host("a").does(f"/{command} {name}")


# ---- help ----


def test_help_lists_every_command_and_quit_ends() -> None:
    listed = Host().does("/help")
    assert all(f"/{name}" in listed for name, command in COMMANDS.items() if command.more)
    for name, command in COMMANDS.items():
        told = Host().does(f"/help {name}")
        assert command.help in told and command.more in told
    assert "Ctrl-C" in listed
    assert max(len(line) for line in listed.splitlines()) < 80
    with pytest.raises(EOFError):
        Host().does("/quit")
