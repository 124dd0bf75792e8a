"""What can be said to the chat itself, and what comes of it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import mlxgen
from mlxgen.options.table import OPTIONS
from mlxgen.terminal.commands import completions

from ..fakes.chatting import THINK, THOUGHT, Chatter
from .conftest import Talking

pytestmark = pytest.mark.whole

END = 1  # an end token is one; all other text is a token for each byte
DATA = Path(__file__).parent.parent / "data" / "chats.jsonl"
CHATS = [json.loads(line) for line in DATA.read_text(encoding="utf-8").splitlines()]
"""A chat a line: what is typed (``argv``, ``lines``, and whether a person is ``typing`` or wants
``colours``), what the model ``answers`` (by default the message in capitals; some ``thinks``), and
what comes of it: what is ``shown``, patterns of what is ``noted``, how ``errors`` begin, what was
``said``, the ``settings`` and the ``status``."""


def abc() -> Chatter:
    return Chatter(lambda message: "abcdefgh")


@pytest.mark.parametrize("case", CHATS, ids=[case["what"] for case in CHATS])
def test_a_chat_goes_as_it_should(case: dict[str, Any], talk: Talking) -> None:
    thinks = case.get("thinks", False)
    begins = f"{THINK}\nhm\n{THOUGHT}\n\n" if thinks else ""
    chatter = Chatter(lambda said: case.get("answers", begins + said.upper()), thinks=thinks)
    how = {name: case[name] for name in ("argv", "typing", "colours") if name in case}
    done = talk(chatter.lm, *case["lines"], **how)
    for pattern in case.get("noted", ()):
        assert re.search(pattern, done.noted), pattern
    for error, expected in zip(done.errors, case.get("errors", ()), strict=True):
        assert error.startswith(expected)
    found = {"shown": done.shown, "status": done.status, "said": [list(e) for e in done.said]}
    for name, value in (found | {"settings": done.saved.get("settings")}).items():
        assert value == case.get(name, value), name


# ---- settings and forms ----


def test_every_option_can_be_set_or_says_what_to_do_instead(talk: Talking) -> None:
    lm = Chatter().lm
    for name in OPTIONS:
        done = talk(lm, f"/set {name} default")
        if done.errors:
            assert re.match(rf"{name}: .*(use|only|leave)", done.errors[0])
        else:
            assert done.noted.startswith(f"  {name} ")


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


# ---- the last answer ----


def test_only_what_is_new_is_run_after_tokens_were_taken_back(talk: Talking) -> None:
    chatter = abc()
    talk(chatter.lm, "x", "/rewind 3")
    chatter.ran()
    talk(chatter.lm, "x", "/rewind 3", "/continue")
    prompt = len("<|im_start|>user\nx") + 40
    assert chatter.ran() <= prompt + len("abcdefgh") + len("efgh") + 3 * END


def test_a_branch_is_come_back_to_without_being_generated_again(talk: Talking) -> None:
    chatter = abc()
    lines = ("x", "/instead @3 X", "/branches 1", "/rewind 1", "/continue")
    talk(chatter.lm, *lines[:2])
    chatter.ran()
    done = talk(chatter.lm, *lines)
    whole = chatter.ran()
    assert done.said == [("x", "abcdefgh")]
    talk(chatter.lm, *lines[:2])
    assert whole - chatter.ran() <= len("cdefgh") + 2 * END


def test_tokens_are_listed_with_what_was_likely_there(talk: Talking) -> None:
    done = talk(abc().lm, "x", "/tokens 2", "/tokens all")
    lines = done.noted.splitlines()
    assert lines[0] == "probability: ‹less than 50%› «less than 10%»"
    assert lines[1] == "abcdefgh"
    assert lines[2].startswith("8 tokens; the least sure")
    assert re.match(r'  @\d +"[a-h]" > 99\.9%   ".*" < 0\.01%', lines[3])
    assert len(lines) == 5 + 3 + 8
    put = talk(abc().lm, "x", '/instead @1 "aa"', "/tokens all").noted
    assert "\n  @1 " in put and "\n  @2 " not in put  # what follows it has no odds here
    hello = ("How do you say hello in Chinese?", "/tokens all", '/rewind "你"', "/tokens 1")
    quiet = ["--chat-template-args", '{"enable_thinking": false}']
    noted = talk(mlxgen.load(), *hello, argv=quiet).noted
    assert '"<0xE4>"' in noted and '"<0xBD>"' in noted  # of 你
    assert "\n10 tokens; the least sure" in noted  # no part of it is left


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
    lm = Chatter().lm
    listed = talk(lm, "/help").noted
    lines = [line for line in listed.splitlines() if re.match(r"/(?!help COMMAND)", line)]
    names = [line[1:].split()[0] for line in lines]
    assert sorted(f"/{name} " for name in names) == sorted(completions("/"))
    assert "Ctrl-C" in listed
    assert max(len(line) for line in listed.splitlines()) < 80
    for name, line in zip(names, lines, strict=True):
        more = talk(lm, f"/help {name}").noted.splitlines()
        assert more[0] == line and len(more) > 1
    ended = talk(lm, "one", "/quit", "two")
    assert (ended.status, ended.shown, ended.saved) == (0, "ONE\n", {})
