"""What can be said to the chat itself."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from mlxgen.options.table import OPTIONS

from ..fakes.chatting import Chatter
from .conftest import Talking

pytestmark = pytest.mark.whole

# ---- what was said ----


def test_undo_takes_back_the_last_exchange_and_says_which(talk: Talking) -> None:
    done = talk(Chatter().lm, "one", "b " * 50, "/undo")
    assert done.noted.startswith("took back: b b b") and len(done.noted) < 80
    assert done.said == [("one", "ONE")]
    none = talk(Chatter().lm, "one", "/undo", "/undo", "/retry", "/edit two")
    assert none.errors == ["there are no messages yet; write one"] * 3 and none.said == []


def test_retry_asks_again_and_says_where_that_changes_nothing(talk: Talking) -> None:
    done = talk(Chatter().lm, "one", "/retry")
    assert "the temperature is 0" in done.noted
    assert (done.shown, done.said) == ("ONE\nONE\n", [("one", "ONE")])
    seeded = ("/set temperature 1", "/set seed 5", "one", "/retry")
    assert "the seed is set" in talk(Chatter().lm, *seeded).noted
    assert "stays the same" not in talk(Chatter().lm, *seeded[:1], "one", "/retry").noted


def test_edit_takes_a_text_or_asks_for_one(talk: Talking) -> None:
    done = talk(Chatter().lm, "one", "two", "/edit c d", "/edit", "e")
    assert done.said == [("one", "ONE"), ("e", "E")] and done.shown == "ONE\nTWO\nC D\nE\n"
    assert done.noted == "the message was:\nc d\nwrite the new one:\n"
    same = talk(Chatter().lm, "one", "/edit", "")
    assert same.noted.endswith("nothing changed\n") and same.said == [("one", "ONE")]


def test_clear_forgets_and_show_shows(talk: Talking) -> None:
    lines = ("one", "/system be brief", "/show", "/clear", "/show", "/system off", "/show")
    assert talk(Chatter().lm, *lines).noted.splitlines() == [
        "system message: be brief",
        "[system] be brief",
        "[user] one",
        "[assistant] ONE",
        "a new conversation; the settings stay",
        "[system] be brief",
        "system message: none",
        "no messages yet",
    ]


# ---- how answers are made ----


def test_set_sets_shows_and_takes_back(talk: Talking) -> None:
    sets = ("/set temperature 0.3", "/set top-k 5", "/set temperature default", "/set")
    done = talk(Chatter().lm, *sets)
    assert done.noted.splitlines()[:3] == [
        "* temperature          0.3",
        "* top_k                5",
        "  temperature          0.0",
    ]
    assert "* top_k                5\n  " in done.noted
    assert "  max_tokens           null\n" in done.noted
    assert done.saved["settings"] == {"top_k": 5}


def test_every_option_can_be_set_or_says_what_to_do_instead(talk: Talking) -> None:
    for name in OPTIONS:
        done = talk(Chatter().lm, f"/set {name} default")
        if done.errors:
            assert re.match(rf"{name}: .*(use|only|leave)", done.errors[0])
        else:
            assert done.noted.startswith(f"  {name} ")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("END", "END"),
        ('"\\n"', "\n"),
        ('["a", "b"]', ["a", "b"]),
        ('"off"', "off"),
        ("7", "7"),
        ("none", None),
    ],
)
def test_values_are_json_or_the_text_itself(text: str, value: object, talk: Talking) -> None:
    done = talk(Chatter().lm, "/set stop before", f"/set stop {text}")
    if text == "7":  # a number is no text
        assert done.errors and done.saved["settings"]["stop"] == "before"
    else:
        assert done.saved["settings"].get("stop") == value


def test_what_is_wrong_is_named_and_changes_nothing(talk: Talking) -> None:
    table = {
        "/set temperature -1": "temperature: expected a number from 0 to 100, got -1",
        "/set temperature hot": "temperature: expected a number from 0 to 100, got 'hot'",
        "/set temprature 1": "temprature: there is no such option; did you mean temperature",
        "/set temprature": "temprature: there is no such option; did you mean temperature",
        "/set foo 1": "foo: there is no such option; /set lists the options",
        "/set draft huge": "draft: expected a LanguageModel",
        "/set seed NaN": "seed: expected an integer, got nan",
        "/sett temperature": "/sett: there is no such command; did you mean /set?",
        "/what": '/what: there is no such command; /help lists the commands ("""/what""" is a',
        "/help nothing": "/nothing: there is no such command",
        "/undo 3": "/undo: expected no argument",
        "/save": "/save: expected a file name",
        "/save /nowhere/chat.json": "/save: /nowhere/chat.json cannot be written: No such file",
        "/load": "/load: expected a file name",
        "/load /nowhere.json": "/load: /nowhere.json cannot be read: No such file",
        "/json /nowhere.json": "/json: /nowhere.json cannot be read: No such file",
        "/lark /nowhere.lark": "/lark: /nowhere.lark cannot be read: No such file",
        "/save no\0file": "/save: expected a file name, got one with a null character",
        "/load /": "/load: / cannot be read: Is a directory",
        f"/json {'x' * 5000}": "/json: xxx",
        "/save /dev/null/file": "/save: /dev/null/file cannot be ",
        r'"""' + "\ud800": "line ",
    }
    lines = [line.encode("utf-8", "surrogatepass") for line in table]
    done = talk(Chatter().lm, "one", *lines)
    for error, expected in zip(done.errors, table.values(), strict=True):
        assert error.startswith(expected)
    assert done.said == [("one", "ONE")] and done.saved["settings"] == {}


def test_forms_come_from_files_or_the_line_and_go_again(talk: Talking, tmp_path: Path) -> None:
    (tmp_path / "my schema.json").write_text('{"type": "array"}')
    (tmp_path / "grammar.lark").write_text('start: "a"')
    (tmp_path / "broken.json").write_text("{")
    forms = (f"/json {tmp_path / 'my schema.json'}", '/json {"type": "object"}', "/regex a{3} b")
    files = (f"/lark {tmp_path / 'grammar.lark'}", f"/json {tmp_path / 'broken.json'}")
    done = talk(Chatter().lm, "/json", *forms, *files, "/json off", "/regex off")
    assert [line for line in done.noted.splitlines() if not line.startswith("error: ")] == [
        "json: off",
        'json: {"type": "array"}',
        'json: {"type": "object"}',
        "regex: a{3} b",
        'lark: start: "a"',
        "json: off",
        "regex: off",
    ]
    assert re.match(r"/json: .*broken.json", done.errors[0]) and len(done.errors) == 1
    assert done.saved["forms"] == {"lark": 'start: "a"'}


# ---- files ----


def test_a_chat_is_saved_over_itself_but_not_over_other_files(
    talk: Talking, tmp_path: Path
) -> None:
    path = tmp_path / "my chat.json"
    saved = talk(Chatter().lm, "one", "two", f"/save {path}", "/undo", f"/save {path}")
    assert re.findall(r"saved to .*: (.*)", saved.noted) == ["2 exchanges", "1 exchange"]
    assert path.stat().st_mode & 0o077 == 0
    path.write_text("mine")
    other = talk(Chatter().lm, f"/save {path}")
    assert re.match(r"/save: .*exists and is not a conversation", other.errors[0])
    assert path.read_text() == "mine"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["my chat.json", "said.json"]


SAID = {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}
NESTED = "[" * 100_000 + "]" * 100_000
MALFORMED: list[tuple[object, str]] = [
    ("", "invalid JSON"),
    (b"\xff", "it is not UTF-8"),
    (NESTED, "invalid JSON"),
    ('{"messages": [], "template": {"a": ' + NESTED + "}}", "invalid JSON"),
    ([], "messages: expected a file that /save has written"),
    ({"settings": {}}, "messages: expected a file that /save has written"),
    ({"messages": 5}, "messages: expected a list, got int"),
    ({"messages": {}, "hooks": []}, "hooks: "),
    ({"messages": [5]}, "messages[0].role: expected user or system, got None"),
    ({"messages": [{"role": "tool"}]}, "messages[0].role: expected user or system, got 'tool'"),
    ({"messages": [{"role": "user"}]}, "messages[0].content: expected text, got NoneType"),
    ({"messages": [SAID[0]] * 2}, "messages[1].role: expected assistant, got 'user'"),
    ({"messages": [*SAID, SAID[0]]}, "the last message has no answer"),
    ({"messages": [{"role": "user", "content": " "}]}, "the message is empty"),
    (r'{"messages": [{"role": "user", "content": "\ud800"}]}', "invalid JSON"),
    ({"messages": [], "extra": 1}, "extra: "),
    ({"messages": [], "settings": []}, "settings: expected a JSON object, got list"),
    ({"messages": [], "settings": {"top_p": 7}}, "top_p: expected a number above 0"),
    ({"messages": [], "settings": {"hooks": []}}, "hooks: only a program"),
    ('{"messages": [], "settings": {"seed": ' + "9" * 5000 + "}}", "invalid JSON"),
    ('{"messages": [], "settings": {"temperature": NaN}}', "temperature: "),
    ({"messages": [], "forms": {"yaml": 1}}, "forms.yaml: expected one of json"),
    ({"messages": [], "forms": {"regex": 5}}, "Regex"),
    ({"messages": [], "forms": {"regex": "("}}, "Regex"),
    ({"messages": [], "settings": {"logit_bias": {"5000": 1}}}, "logit_bias: "),
]


def test_a_malformed_conversation_is_refused_with_its_file_and_changes_nothing(
    talk: Talking, tmp_path: Path
) -> None:
    files = [tmp_path / f"{number}.json" for number in range(len(MALFORMED))]
    for file, (given, _) in zip(files, MALFORMED, strict=True):
        text = given if isinstance(given, str | bytes) else json.dumps(given)
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
    done = talk(Chatter().lm, "one", "/set seed 3", *(f"/load {file}" for file in files))
    for error, file, (_, expected) in zip(done.errors, files, MALFORMED, strict=True):
        assert error.startswith("/load: ") and str(file) in error and expected in error
    assert done.said == [("one", "ONE")] and done.saved["settings"] == {"seed": 3}


# ---- help ----


def test_help_lists_every_command_and_explains_each_and_quit_ends(talk: Talking) -> None:
    listed = talk(Chatter().lm, "/help").noted
    lines = [line for line in listed.splitlines() if re.match(r"/(?!help COMMAND)", line)]
    names = [line[1:].split()[0] for line in lines]
    assert len(names) > 15 and {"rewind", "set", "quit"} < set(names)
    assert "Ctrl-C" in listed
    assert max(len(line) for line in listed.splitlines()) < 80
    for name, line in zip(names, lines, strict=True):
        more = talk(Chatter().lm, f"/help {name}").noted.splitlines()
        assert more[0] == line and len(more) > 1
    ended = talk(Chatter().lm, "one", "/quit", "two")
    assert (ended.status, ended.shown, ended.saved) == (0, "ONE\n", {})
