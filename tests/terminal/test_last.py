"""Taking back, steering and comparing the last answer of a conversation."""

from __future__ import annotations

import re
from typing import Any

import pytest
from rich.cells import cell_len

from mlxgen.engine.chunk import Alternative, Chunk
from mlxgen.errors import OptionError
from mlxgen.terminal.answer import Answerer
from mlxgen.terminal.branches import Branches, percent
from mlxgen.terminal.chat import completions
from mlxgen.terminal.conversation import Conversation
from mlxgen.terminal.last import Last
from mlxgen.terminal.odds import least_sure, marked
from mlxgen.terminal.painter import Painter

from ..fakes.chatting import THINK, THOUGHT, Chatter
from .test_converse import Talk

END = 1


def abc(message: str) -> str:
    return "abcdefgh"


def thinking(message: str) -> str:
    return f"{THINK}\nhm\n{THOUGHT}\n\n{message.upper()}"


# ---- back and on ----


def test_tokens_are_taken_back_and_only_what_is_new_is_run() -> None:
    chatter = Chatter(abc)
    conversation = Conversation()
    talk = Talk(chatter, "x", "/rewind 3", conversation=conversation)
    assert talk.said == [("x", "abcde")]
    assert talk.noted.startswith("abcde\n(took back: 'fgh'; /continue goes on")
    assert talk.shown == "abcdefgh\n"
    chatter.ran()
    again = Talk(chatter, "x", "/rewind 3", "/continue")
    assert again.said == [("x", "abcdefgh")]
    assert again.shown == "abcdefgh\nabcdefgh\n"
    assert (
        chatter.ran() <= len("<|im_start|>user\nx") + 40 + len("abcdefgh") + len("efgh") + 3 * END
    )


@pytest.mark.parametrize(
    ("argument", "left"),
    [('"d"', "abc"), ("cd", "ab"), ("@3", "ab"), ("0", "abcdefgh"), ("8", ""), ('"\\u0063"', "ab")],
)
def test_a_place_is_a_count_a_text_or_the_number_of_a_token(argument: str, left: str) -> None:
    talk = Talk(Chatter(abc), "x", f"/rewind {argument}")
    assert talk.said == [("x", left)]
    assert ("(took back: nothing but the end; " in talk.noted) == (left == "abcdefgh")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("/rewind 9", "the answer has 8 tokens; take back at most 8"),
        ("/rewind", "/rewind: expected a number of tokens"),
        ('/rewind "zz"', "/rewind: the answer has no 'zz'; /tokens shows"),
        ('/rewind "d', "/rewind: expected a text between quotes"),
        ("/rewind @9", "@9: the answer has the tokens @1 to @8"),
        (f"/rewind {'9' * 5000}", "/rewind: expected a number, got '999"),
        (f"/rewind @{'9' * 5000}", "/rewind: the answer has no '@999"),
        (f"/tokens {'9' * 5000}", "/tokens: expected a number, got '999"),
        ("/continue", "the answer has ended; take back some of it with /rewind"),
        ("/instead", "/instead: expected a token or a text"),
        ("/instead Q", "/instead: the answer has ended; say where, such as /instead @3 Rome"),
        ("/branches 7", "there is no branch 7; there are 1"),
        ("/compare 1 7", "there is no branch 7; there are 1"),
        ("/branches x", "/branches: expected a number, got 'x'"),
        ("/compare", "/compare: there is only one version"),
        ("/compare 1 2 3", "/compare: expected two branches at most"),
        ("/help nothing", "/nothing: there is no such command"),
    ],
)
def test_what_cannot_be_done_says_why_and_changes_nothing(line: str, message: str) -> None:
    talk = Talk(Chatter(abc), "x", line)
    assert talk.noted.startswith(f"error: {message}")
    assert talk.said == [("x", "abcdefgh")]


def test_without_an_answer_nothing_can_be_taken_back() -> None:
    for lines in (["/rewind 1"], ["x", "/undo", "/tokens"], ["x", "/clear", "/branches"]):
        assert "error: there is no answer that can be taken back" in Talk(Chatter(), *lines).noted


def test_a_message_answers_what_is_left() -> None:
    talk = Talk(Chatter(), "one", "/rewind 1", "two")
    assert talk.said == [("one", "ON"), ("two", "TWO")]


def test_an_answer_that_was_cut_off_goes_on_with_as_many_tokens_again() -> None:
    talk = Talk(Chatter(abc), "/set max_tokens 3", "x", "/continue", "/rewind 4", "/continue")
    assert talk.shown.splitlines() == ["abc", "abcdef", "abcdef"]
    assert talk.said == [("x", "abcdef")]


def test_changed_settings_hold_for_what_follows() -> None:
    talk = Talk(Chatter(abc), "x", "/rewind 4", "/regex abcd[xy]{2}", "/continue")
    assert re.fullmatch("abcd[xy]{2}", talk.said[0][1])
    talk = Talk(Chatter(abc), "x", "/rewind 4", "/regex [xy]*", "/continue")
    assert "error: " in talk.noted
    assert talk.said == [("x", "abcd")]


def test_reasoning_can_be_taken_back_too() -> None:
    talk = Talk(Chatter(thinking, thinks=True), "one", '/rewind "m"', "/continue")
    assert talk.noted.startswith("| hm\nh\n(took back: 'm ONE'; /continue goes on from here")
    assert talk.noted.endswith("\n| hm\n")
    assert THINK not in talk.noted
    assert talk.said == [("one", "ONE")]
    dimmed = Talk(Chatter(thinking, thinks=True), "one", "/rewind 1", "/branches 1", colours=True)
    assert "\x1b[2mhm\x1b[0m\n\nON\n(took back: 'E'; " in dimmed.noted
    assert dimmed.noted.endswith("\x1b[2mhm\x1b[0m\n\nONE\n")


# ---- other ways ----


def test_another_text_takes_a_place_and_the_answer_goes_on_from_it() -> None:
    assert Talk(Chatter(abc), "x", "/instead @3 XY").said == [("x", "abXYefgh")]
    assert Talk(Chatter(abc), "x", "/rewind 3", "/instead Q").said == [("x", "abcdeQgh")]
    assert Talk(Chatter(abc), "x", "/rewind 3", '/instead " Q"').said == [("x", "abcde Qh")]


def test_what_the_form_forbids_is_refused_and_nothing_changes() -> None:
    talk = Talk(Chatter(abc), "/regex [a-h]*", "x", "/instead @3 X", "/instead @3 hh", "/branches")
    assert "error: /instead: 'X' is not allowed at token 3: " in talk.noted
    assert talk.said == [("x", "abhhefgh")]
    assert talk.noted.endswith("[2] hhefgh  <- here\n")


def test_what_was_left_behind_is_a_tree_that_one_can_walk() -> None:
    talk = Talk(
        Chatter(abc), "x", "/instead @3 X", "/instead @3 Y", "/branches", "/branches 1", "/compare"
    )
    tree = talk.noted.splitlines()[:4]
    assert tree[0] == "ab"
    assert [line.split("[")[1] for line in tree[1:]] == [
        "1] cdefgh",
        "2] Xdefgh",
        "3] Ydefgh  <- here",
    ]
    assert tree[1].startswith("├─ > 99.9%  ") and tree[2].startswith("├─   typed  ")
    assert talk.said == [("x", "abcdefgh")]
    assert "«abcdefgh»" in talk.noted and "«abYdefgh»" in talk.noted


def test_a_branch_is_come_back_to_without_being_generated_again() -> None:
    chatter = Chatter(abc)
    lines = ("x", "/instead @3 X", "/branches 1", "/rewind 1", "/continue")
    Talk(chatter, *lines[:2])
    chatter.ran()
    talk = Talk(chatter, *lines)
    before = chatter.ran()
    assert talk.said == [("x", "abcdefgh")]
    Talk(chatter, *lines[:2])
    assert before - chatter.ran() <= len("cdefgh") + 2 * END


def test_the_same_again_is_no_other_version_and_a_retry_is_one() -> None:
    same = Talk(Chatter(abc), "x", "/rewind 3", "/continue", "/branches")
    assert "[1] abcdefgh  <- here" in same.noted
    chatter = Chatter(abc)
    talk = Talk(chatter, "x", "/instead @1 Z", "/retry", "/branches")
    assert "[2] Zbcdefgh" in talk.noted and "[1] abcdefgh  <- here" in talk.noted


def test_what_was_only_taken_back_takes_no_number() -> None:
    lines = ("x", "/rewind 3", "/instead Q", "/branches 1", "/rewind 2", "/instead R", "/branches")
    tree = Talk(Chatter(abc), *lines).noted.splitlines()[-5:]
    assert [re.sub(r".*(?=\[)", "", line) for line in tree if "[" in line] == [
        "[1] gh",
        "[3] Rh  <- here",
        "[2] Qgh",
    ]


def test_a_retry_of_an_earlier_message_has_no_versions_of_the_one_that_was_undone() -> None:
    talk = Talk(Chatter(), "one", "two", "/rewind 1", "/undo", "/retry", "/branches")
    assert talk.noted.splitlines()[-1] == "[1] ONE  <- here"


def test_an_end_that_is_the_beginning_of_another_version_is_marked_in_the_tree() -> None:
    talk = Talk(Chatter(abc), "x", "/rewind 3", "/branches")
    assert talk.noted.splitlines()[2] == "[2] abcde  <- here"
    assert talk.noted.splitlines()[3].startswith("└─ ")


@pytest.mark.parametrize("letter", ["a", "好"])
def test_lines_of_the_tree_and_of_the_odds_fit_the_terminal(letter: str) -> None:
    branches = Branches()
    branches.shows([Chunk("", 0, i) for i in range(200)])
    for at in (60, 120):
        branches.leaves([Chunk("", int(i >= at), i) for i in range(200)])
    tree = branches.tree(lambda version: [letter for _ in version], columns=60)
    assert len(tree) == 5 and any(line.endswith("<- here") for line in tree)
    assert all(55 < cell_len(line) <= 60 for line in tree)
    pieces = (letter, "ab", "cd", "ef")
    top = tuple(Alternative(token, -1.0 - token / 8) for token in range(4))
    chunk = Chunk("", 0, 0, logprob=-1.0, top=top)
    listed = list(least_sure([chunk], pieces.__getitem__, columns=40))
    assert listed[1] == f'  @1     "{letter}"  36.79%   "ab" 32.47%'


# ---- the odds ----


def test_tokens_are_listed_with_what_was_likely_there() -> None:
    talk = Talk(Chatter(abc), "x", "/tokens 2", "/tokens all")
    lines = talk.noted.splitlines()
    assert lines[0] == "probability: ‹less than 50%› «less than 10%»"
    assert lines[1] == "abcdefgh"
    assert lines[2].startswith("8 tokens; the least sure")
    assert re.match(r'  @\d +"[a-h]" > 99\.9%   ".*" < 0\.01%', lines[3])
    assert len(lines) == 5 + 3 + 8


def test_tokens_are_tinted_where_there_are_colours() -> None:
    talk = Talk(Chatter(thinking, thinks=True), "one", "/tokens", colours=True)
    plain = re.sub(r"\x1b\[[0-9;]*m", "", talk.noted)
    assert "\nhm\n\nONE\n" in plain
    assert plain.count("hm") == 2  # it was shown aside, too
    assert re.search(r"\x1b\[48;5;\d+;38;5;\d+mO\x1b\[0m", talk.noted)
    assert THINK not in talk.noted.partition("tokens; the least sure")[0]


def test_unlikely_tokens_are_marked_where_there_are_no_colours() -> None:
    marker = Painter(marked)
    pushed = [("a", -0.1), (" b ", -1.0), ("", -4.0), (" c", -0.1), ("d", None), ("\n", -9.0)]
    assert "".join(marker.push(*each) for each in pushed) == "a ‹b›  «c»d\n"
    assert percent(None) == "  typed"
    assert percent(-1e-9) == "> 99.9%" and percent(-20.0) == "< 0.01%"


# ---- what is typed ----


def test_commands_and_their_arguments_are_completed() -> None:
    assert set(completions("/re")) == {"/retry ", "/rewind ", "/regex "}
    assert completions("/set temp") == ["temperature"]
    assert "rewind" in completions("/help ")
    assert completions("hello") == [] == completions("/set temperature 0")


def test_files_are_completed(tmp_path: Any) -> None:
    (tmp_path / "chat.json").touch()
    (tmp_path / "chats").mkdir()
    assert completions(f"/load {tmp_path}/cha") == [f"{tmp_path}/chat.json", f"{tmp_path}/chats/"]
    assert completions(f"/load {tmp_path}/none/x") == []


# ---- one answer ----


@pytest.mark.parametrize("draft", ["off", "ngram"])
def test_an_answer_moves_between_versions_and_goes_on_from_each(draft: str) -> None:
    chatter = Chatter(lambda message: "ab" * 8)
    conversation = Conversation()
    conversation.set("draft", draft)
    conversation.ask("x")
    answer = Answerer(chatter.lm).begin(conversation)
    for count, _ in enumerate(answer, 1):
        if count == 9:
            break
    answer.finish()
    first = list(answer.chunks)
    answer.move(first[:4])
    assert (answer.text, answer.finish_reason) == ("abab", None)
    answer.move(first)
    assert answer.text == "ab" * 4 + "a"
    list(answer)
    answer.finish()
    assert (answer.text, answer.finish_reason) == ("ab" * 8, "stop")
    answer.move(first[:2], chatter.lm.vocabulary.encode("Z", special=False))
    list(answer)
    assert answer.text == "abZ" + ("ab" * 8)[3:]
    with pytest.raises(OptionError):
        answer.move(first[:2], [-1])
    assert answer.text == "abZ" + ("ab" * 8)[3:]
    answer.close()


def test_text_that_a_ban_may_claim_again_is_not_shown_twice() -> None:
    chatter = Chatter(lambda message: "abcabcab")
    conversation = Conversation()
    conversation.set("banned", ["cabX"])
    conversation.set("stop", ["cabY"])
    talk = Talk(chatter, "x", "/rewind 3", "/continue", conversation=conversation)
    assert talk.said == [("x", "abcabcab")]
    assert talk.shown == "abcabcab\nabcabcab\n"


def test_a_part_of_a_character_has_a_name() -> None:
    vocabulary = Chatter().lm.vocabulary
    answer: Any = None
    last = Last(answer, vocabulary, Branches())
    tokens = vocabulary.continue_with("é!".encode())
    assert [last.piece(token) for token in tokens] == ["<0xC3>", "<0xA9>", "!"]
