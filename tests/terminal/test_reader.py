"""Lines that become messages."""

from __future__ import annotations

import io
from types import SimpleNamespace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mlxgen.errors import PromptError
from mlxgen.terminal import reader
from mlxgen.terminal.reader import Composer, PipeReader, TerminalReader, Typed


def typed(*lines: str) -> list[Typed]:
    composer = Composer()
    messages = [composer.push(line) for line in lines] + [composer.flush()]
    return [message for message in messages if message is not None]


def test_a_line_is_a_message() -> None:
    assert typed("one", "", "two") == [("one", False), ("", False), ("two", False)]


def test_a_backslash_at_the_end_goes_on_with_the_next_line() -> None:
    assert typed("one\\", "two\\", "three", "four") == [
        ("one\ntwo\nthree", False),
        ("four", False),
    ]
    assert typed("/system one\\", "two") == [("/system one\ntwo", False)]
    assert typed("one\\") == [("one", False)]


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        (['"""', "one", "two", '"""'], "one\ntwo"),
        (['"""one', 'two"""'], "one\ntwo"),
        (['"""one"""'], "one"),
        (['"""', "", "one", "", '"""'], "\none\n"),
        (['"""', "one\\", '"two"', '"""'], 'one\\\n"two"'),
        (['"""/undo"""'], "/undo"),
        (['""""""'], ""),
        (['"""', "one", "two"], "one\ntwo"),
        (['"""pasted\nlines\\\n', '"""'], "pasted\nlines\\\n"),
    ],
)
def test_three_quotes_begin_and_end_a_block(lines: list[str], text: str) -> None:
    assert typed(*lines) == [(text, True)]
    assert typed(*lines, *(['"""'] if not lines[-1].endswith('"""') else []), "next") == [
        (text, True),
        ("next", False),
    ]


def test_what_was_pasted_is_one_line() -> None:
    assert typed("one\ntwo\\\nthree") == [("one\ntwo\\\nthree", True)]
    assert typed('"""\none\n"""') == [("one", True)]


@given(st.text().filter(lambda text: '"""' not in text and not text.endswith('"')))
@example("\n")
@example("/quit\\")
def test_every_text_can_be_a_block(text: str) -> None:
    assert typed('"""', *text.split("\n"), '"""') == [(text, True)]


# ---- pipes ----


def pipe(data: bytes) -> PipeReader:
    return PipeReader(io.BytesIO(data))


def test_a_pipe_gives_its_messages_and_then_ends() -> None:
    reader = pipe(b'one\r\n\xc3\xa9\\\ntwo\n"""\nthree\n')
    assert [reader.read() for _ in range(3)] == [
        ("one", False),
        ("é\ntwo", False),
        ("three", True),
    ]
    with pytest.raises(EOFError):
        reader.read()
    assert reader.edit("anything") is None


def test_a_line_that_is_no_text_is_named_and_the_next_one_is_read() -> None:
    reader = pipe(b"one\n\xff\xfe\ntwo\n")
    reader.read()
    with pytest.raises(PromptError, match="line 2 of the input is not UTF-8"):
        reader.read()
    assert reader.read().text == "two"


def test_a_prompt_is_shown_where_one_is_wanted() -> None:
    prompts = io.StringIO()
    reader = PipeReader(io.BytesIO(b"one\\\ntwo\n"), prompts)
    reader.read()
    assert prompts.getvalue() == "> ... "


# ---- terminals ----


def test_a_terminal_asks_for_each_line(capsys: pytest.CaptureFixture[str]) -> None:
    lines = iter(["one\\", "two"])
    asked: list[str] = []

    def ask(prompt: str) -> str:
        asked.append(prompt)
        try:
            return next(lines)
        except StopIteration:
            raise EOFError from None

    reader = TerminalReader(ask)
    assert reader.read() == ("one\ntwo", False)
    assert asked == ["> ", "... "]
    with pytest.raises(EOFError):
        reader.read()
    assert capsys.readouterr().out == "\n"


def test_the_end_of_the_input_at_an_edit_ends_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("readline")

    def ask(prompt: str) -> str:
        raise EOFError

    assert TerminalReader(ask).edit("text") == ""
    assert capsys.readouterr().out == "\n"


@pytest.mark.parametrize(("text", "kept"), [("one", ["one"]), ("one\ntwo", [])])
def test_libedit_which_fills_no_line_has_the_message_an_arrow_away(
    text: str, kept: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    history: list[str] = []
    libedit = SimpleNamespace(__doc__="line editing using libedit.", add_history=history.append)
    monkeypatch.setattr(reader, "_readline", lambda: libedit)
    assert TerminalReader().edit(text) is None
    assert history == kept
    assert ("the arrow up brings the message back\n" in capsys.readouterr().err) == bool(kept)
