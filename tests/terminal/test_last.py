"""Taking back, steering and comparing the last answer of a conversation."""

from __future__ import annotations

import re

import pytest

import mlxgen

from ..fakes.chatting import THINK, THOUGHT, Chatter
from .conftest import Talking

pytestmark = pytest.mark.whole
END = 1


def abc() -> Chatter:
    return Chatter(lambda message: "abcdefgh")


def thinking(message: str) -> str:
    return f"{THINK}\nhm\n{THOUGHT}\n\n{message.upper()}"


# ---- back and on ----


def test_tokens_are_taken_back_and_only_what_is_new_is_run(talk: Talking) -> None:
    chatter = abc()
    done = talk(chatter.lm, "x", "/rewind 3")
    assert done.said == [("x", "abcde")]
    assert done.noted.startswith("abcde\n(took back: 'fgh'; /continue goes on")
    assert done.shown == "abcdefgh\n"
    chatter.ran()
    again = talk(chatter.lm, "x", "/rewind 3", "/continue")
    assert again.said == [("x", "abcdefgh")]
    assert again.shown == "abcdefgh\nabcdefgh\n"
    assert again.noted.endswith(
        "the temperature is 0, so the same comes again; try /instead TEXT\n"
    )
    prompt = len("<|im_start|>user\nx") + 40
    assert chatter.ran() <= prompt + len("abcdefgh") + len("efgh") + 3 * END


@pytest.mark.parametrize(
    ("argument", "left"),
    [('"d"', "abc"), ("cd", "ab"), ("@3", "ab"), ("0", "abcdefgh"), ("8", ""), ('"\\u0063"', "ab")],
)
def test_a_place_is_a_count_a_text_or_the_number_of_a_token(
    argument: str, left: str, talk: Talking
) -> None:
    done = talk(abc().lm, "x", f"/rewind {argument}")
    assert done.said == [("x", left)]
    assert ("(took back: nothing but the end; " in done.noted) == (left == "abcdefgh")


def test_what_cannot_be_done_says_why_and_changes_nothing(talk: Talking) -> None:
    table = {
        "/rewind 9": "the answer has 8 tokens; take back at most 8",
        "/rewind": "/rewind: expected a number of tokens",
        '/rewind "zz"': "/rewind: the answer has no 'zz'; /tokens shows",
        '/rewind "d': "/rewind: expected a text between quotes",
        "/rewind @9": "@9: the answer has the tokens @1 to @8",
        f"/rewind {'9' * 5000}": "/rewind: expected a number, got '999",
        f"/rewind @{'9' * 5000}": "/rewind: the answer has no '@999",
        f"/tokens {'9' * 5000}": "/tokens: expected a number, got '999",
        "/continue": "the answer has ended; take back some of it with /rewind",
        "/instead": "/instead: expected a token or a text",
        "/instead Q": "/instead: the answer has ended; say where, such as /instead @3 Rome",
        "/branches 7": "there is no branch 7; there are 1",
        "/compare 1 7": "there is no branch 7; there are 1",
        "/branches x": "/branches: expected a number, got 'x'",
        "/compare": "/compare: there is only one version",
        "/compare 1 2 3": "/compare: expected two branches at most",
    }
    done = talk(abc().lm, "x", *table)
    for error, expected in zip(done.errors, table.values(), strict=True):
        assert error.startswith(expected)
    assert done.said == [("x", "abcdefgh")]


def test_without_an_answer_nothing_can_be_taken_back(talk: Talking) -> None:
    for lines in (["/rewind 1"], ["x", "/undo", "/tokens"], ["x", "/clear", "/branches"]):
        done = talk(Chatter().lm, *lines)
        assert done.errors[0].startswith("there is no answer that can be taken back")


@pytest.mark.parametrize(
    ("lines", "left"),
    [
        (["/set max_tokens 3", "x", "/continue", "/rewind 4", "/continue"], "abcdef"),
        (["x", "/rewind 4", "/regex abcd[xy]", "/continue"], "abcd[xy]"),  # settings hold at once
        (["x", "/rewind 4", "/regex [xy]*", "/continue"], "abcd"),  # and what is left must fit
        (["x", "/instead @3 XY"], "abXYefgh"),
        (["x", "/instead @3 cX"], "abcXefgh"),  # it begins as what stood there
        (["x", "/rewind 3", "/instead Q"], "abcdeQgh"),
        (["x", "/rewind 3", '/instead " Q"'], "abcde Qh"),
        (["x", "/instead @3 X", "/branches 1"], "abcdefgh"),
        (["/set draft ngram", "x", "/instead @3 X", "/branches 1", "/instead @1 Z"], "Zbcdefgh"),
    ],
)
def test_an_answer_goes_on_from_where_it_was_put(
    lines: list[str], left: str, talk: Talking
) -> None:
    done = talk(abc().lm, *lines)
    assert re.fullmatch(left, done.said[0][1])
    assert len(done.errors) == (left == "abcd")


def test_a_message_answers_what_is_left(talk: Talking) -> None:
    assert talk(Chatter().lm, "one", "/rewind 1", "two").said == [("one", "ON"), ("two", "TWO")]


def test_a_word_gets_the_space_of_the_word_that_was_there(talk: Talking) -> None:
    chatter = Chatter(lambda message: "ab cd ef")
    assert talk(chatter.lm, "x", "/instead @3 Rome").said == [("x", "ab Romef")]


def test_reasoning_can_be_taken_back_too(talk: Talking) -> None:
    chatter = Chatter(thinking, thinks=True)
    done = talk(chatter.lm, "one", '/rewind "m"', "/continue")
    assert done.noted.startswith("| hm\nh\n(took back: 'm ONE'; /continue goes on from here")
    assert done.noted.endswith("\n| hm\n")
    assert THINK not in done.noted
    assert done.said == [("one", "ONE")]
    dimmed = talk(chatter.lm, "one", "/rewind 1", "/branches 1", colours=True)
    assert "\x1b[2mhm\x1b[0m\n\nON\n(took back: 'E'; " in dimmed.noted
    assert dimmed.noted.endswith("\x1b[2mhm\x1b[0m\n\nONE\n")


def test_text_that_a_ban_may_claim_again_is_not_shown_twice(talk: Talking) -> None:
    held = ("/set banned cabX", "/set stop cabY")
    done = talk(Chatter(lambda said: "abcabcab").lm, *held, "x", "/rewind 3", "/continue")
    assert done.said == [("x", "abcabcab")]
    assert done.shown == "abcabcab\nabcabcab\n"


# ---- versions ----


def test_what_the_form_forbids_is_refused_and_nothing_changes(talk: Talking) -> None:
    forms = ("/regex [a-h]*", "x", "/instead @3 X", "/instead @3 hh", "/branches")
    done = talk(abc().lm, *forms)
    assert done.errors[0].startswith("/instead: 'X' is not allowed at token 3: ")
    assert done.said == [("x", "abhhefgh")]
    assert done.noted.endswith("[2] hhefgh  <- here\n")


def test_what_was_left_behind_is_a_tree_that_one_can_walk(talk: Talking) -> None:
    ways = ("/instead @3 X", "/instead @3 Y", "/branches", "/branches 1", "/compare")
    done = talk(abc().lm, "x", *ways)
    tree = done.noted.splitlines()[:4]
    assert tree[0] == "ab"
    assert [line.split("[")[1] for line in tree[1:]] == [
        "1] cdefgh",
        "2] Xdefgh",
        "3] Ydefgh  <- here",
    ]
    assert tree[1].startswith("├─ > 99.9%  ") and tree[2].startswith("├─   typed  ")
    assert done.said == [("x", "abcdefgh")]
    assert "«abcdefgh»" in done.noted and "«abYdefgh»" in done.noted


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


@pytest.mark.parametrize(
    ("lines", "tree"),
    [
        (["/rewind 3", "/continue"], ["[1] abcdefgh  <- here"]),  # the same is no other version
        (["/instead @1 Z", "/retry"], ["[1] abcdefgh  <- here", "[2] Zbcdefgh"]),
        (["/rewind 3"], ["[2] abcde  <- here", "[1] fgh"]),  # it begins another one
        (
            ["/rewind 3", "/instead Q", "/branches 1", "/rewind 2", "/instead R"],
            ["[1] gh", "[3] Rh  <- here", "[2] Qgh"],  # what was only taken back has no number
        ),
        (["two", "/rewind 1", "/undo", "/retry"], ["[1] abcdefgh  <- here"]),
    ],
)
def test_versions_have_numbers(lines: list[str], tree: list[str], talk: Talking) -> None:
    noted = talk(abc().lm, "x", *lines, "/branches").noted.splitlines()
    found = [re.sub(r".*(?=\[\d)", "", line) for line in noted if re.search(r"\[\d\]", line)]
    assert found[-len(tree) :] == tree


# ---- the odds ----


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


def test_tokens_are_tinted_where_there_are_colours(talk: Talking) -> None:
    done = talk(Chatter(thinking, thinks=True).lm, "one", "/tokens", colours=True)
    plain = re.sub(r"\x1b\[[0-9;]*m", "", done.noted)
    assert "\nhm\n\nONE\n" in plain
    assert re.search(r"\x1b\[48;5;\d+;38;5;\d+mO\x1b\[0m", done.noted)
    assert THINK not in done.noted.partition("tokens; the least sure")[0]
