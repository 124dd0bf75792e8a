"""What a person says, what is shown for it, and what the conversation becomes."""

from __future__ import annotations

import json
import random
import re
import signal
import string
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mlx_lm.models.cache import ArraysCache, KVCache, RotatingKVCache

import mlxgen
from mlxgen import generate
from mlxgen.errors import MachineError

from ..fakes.chatting import FORGETFUL, TEMPLATE, THINK, THOUGHT, Chatter
from .conftest import Talk, Talking

END = 1  # an end token is one; all other text is a token for each byte
CACHES: dict[str, Callable[[], list[Any]]] = {
    "plain": lambda: [KVCache()],
    "window": lambda: [RotatingKVCache(max_size=1000)],
    "recurrent": lambda: [ArraysCache(1)],
}


@pytest.fixture(scope="module")
def demo() -> mlxgen.LanguageModel:
    return mlxgen.load()


def thinking(message: str) -> str:
    return f"{THINK}\nhm\n{THOUGHT}\n\n{message.upper()}"


def prompts(talk: Talk) -> list[tuple[int, int]]:
    """The tokens of each prompt, and how many of them were cached, as ``--verbose`` says."""
    found = re.findall(r"prompt: +(\d+) tokens?(?: \((\d+) of them cached\))?", talk.noted)
    return [(int(tokens), int(cached or 0)) for tokens, cached in found]


# ---- messages and answers ----


def test_what_goes_wrong_is_one_line_and_the_chat_goes_on(talk: Talking) -> None:
    done = talk(Chatter().lm, "/nothing", "one", "/set temperature hot", b"\xff\xfe", "two")
    assert done.shown == "ONE\nTWO\n"
    assert [error.split(":")[0] for error in done.errors] == [
        "/nothing",
        "temperature",
        "line 4 of the input is not UTF-8 text (invalid start byte)",
    ]
    assert done.status == 2
    person = talk(Chatter().lm, "/nothing", "one", typing=True)
    assert person.status == 0
    assert "chatter: /help" in person.noted


def test_an_error_in_the_middle_keeps_the_text_so_far(talk: Talking) -> None:
    chatter = Chatter(lambda message: "abababab")
    # so that nothing is left behind the eighth character
    before = ("/regex [ab]{8}d", "/set banned d")
    done = talk(chatter.lm, *before, "one", "/regex off", "two")
    assert len(done.errors) == 1
    (_, cut), second = done.said
    assert cut and "abababab".startswith(cut)
    assert second == ("two", "abababab")
    assert done.shown == f"{cut}\nabababab\n"


def test_a_saved_conversation_has_its_messages_in_order(talk: Talking, tmp_path: Path) -> None:
    template = TEMPLATE + "{{ mood or '' }}"
    chatter = Chatter(lambda said: thinking("yes"), thinks=True, template=template)
    argv = ["--system", "s", "--chat-template-args", '{"mood": ""}']
    commands = ("/set temperature 0.25", '/set logit_bias {"5": -1}', '/set stop ["x", "y"]')
    done = talk(chatter.lm, "é", *commands, '/json {"type": "string"}', argv=argv)
    assert done.saved == {
        "messages": [
            {"role": "system", "content": "s"},
            {"role": "user", "content": "é"},
            {"role": "assistant", "content": "YES", "reasoning_content": "hm"},
        ],
        "settings": {"temperature": 0.25, "logit_bias": {"5": -1}, "stop": ["x", "y"]},
        "forms": {"json": {"type": "string"}},
        "template": {"mood": ""},
    }
    (tmp_path / "my chat.json").write_bytes((tmp_path / "said.json").read_bytes())
    again = talk(chatter.lm, f"/load {tmp_path / 'my chat.json'}", "/set logit_bias")
    assert again.saved == done.saved
    assert "loaded" in again.noted and '* logit_bias           {"5": -1.0}' in again.noted


def test_without_a_home_folder_a_chat_is_not_kept(
    talk: Talking, homeless: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert talk(Chatter().lm, "one", typing=True).said == [("one", "ONE")]
    assert generate.main(["--resume"]) == 2
    assert "--resume: there is no home folder" in capsys.readouterr().err


# ---- reasoning and forms ----


def test_forms_hold_together_for_what_follows_the_reasoning(
    demo: mlxgen.LanguageModel, talk: Talking
) -> None:
    question = "What is 34 + 28?"
    lines = ('/json {"enum": ["ab", "cd"]}', '/regex "a.*', question, "/json off", question)
    done = talk(demo, *lines, "/set close_json true", "/regex off", "/set close_json")
    assert done.said[0][1] == '"ab"' and done.said[1][1].startswith('"a')
    assert "| 4 + 8 = 12, carry 1." in done.noted and "carry" not in done.shown
    assert done.noted.endswith("regex: off\n  close_json           false\n")  # went with the form
    closed = talk(demo, '/json {"properties": {}, "type": "object"}', question)
    assert json.loads(closed.said[0][1]) == {}  # an object has no keys but those that are named


def test_what_the_model_cannot_follow_is_found_at_once_and_changes_nothing(
    demo: mlxgen.LanguageModel, talk: Talking
) -> None:
    wrong = ('/set logit_bias {"5000": 1}', "/regex (", "/set close_json true", '/json {"type": 5}')
    done = talk(demo, *wrong)
    names = [re.split(r"[:(]", error)[0] for error in done.errors]
    assert names == ["logit_bias", "Regex", "close_json", "JsonSchema"]
    assert done.saved["settings"] == {} == done.saved["forms"]


# ---- what is run anew ----


@pytest.mark.parametrize("kind", CACHES)
def test_nothing_is_run_twice_of_what_was_said(kind: str, talk: Talking) -> None:
    chatter = Chatter(make_cache=CACHES[kind])
    stays, goes = "a message that stays", "a message that goes"
    done = talk(chatter.lm, stays, goes, "/undo", "other", "/retry", argv=["--verbose"])
    assert done.said == [(stays, stays.upper()), ("other", "OTHER")]
    begins, answered = len("<|im_start|>user\n"), END + len("\n<|im_start|>assistant\n")
    first = begins + len(stays) + answered
    known = first + len(stays) + END
    following = known + 1 + begins + len(goes) + answered
    other = known + 1 + begins + len("other") + answered
    kept = known + (0 if kind == "recurrent" else 1 + begins)
    found = prompts(done)
    assert found == [(first, 0), (following, known), (other, kept), (other, other - 1)]
    said = 2 * len("other") + len(stays) + len(goes) + 4 * END
    assert chatter.ran() == sum(tokens - cached for tokens, cached in found) + said


@pytest.mark.parametrize("kind", CACHES)
def test_a_stopped_answer_is_gone_on_from_where_it_stopped(kind: str, talk: Talking) -> None:
    chatter = Chatter(make_cache=CACHES[kind])
    lines = ("/set max_tokens 5", "a long message", "/set max_tokens default", "go on")
    done = talk(chatter.lm, *lines, argv=["--verbose"])
    assert done.said == [("a long message", "A LON"), ("go on", "GO ON")]
    (first, _), (_, cached) = prompts(done)
    assert cached >= first + (4 if kind == "plain" else 0)  # the fifth was never run


@pytest.mark.parametrize("kind", CACHES)
def test_where_the_template_forgets_reasoning_only_the_answer_is_run_again(
    kind: str, talk: Talking
) -> None:
    chatter = Chatter(thinking, template=FORGETFUL, thinks=True, make_cache=CACHES[kind])
    done = talk(chatter.lm, "a message to think of", "and more", "/retry", argv=["--verbose"])
    (first, _), (_, cached), (tokens, again) = prompts(done)
    header = len("<|im_start|>assistant\n")  # which no message's end is the end of
    assert first - header <= cached <= first
    if kind == "plain":
        assert cached == first
    assert again == tokens - 1


# ---- the context ----


def test_what_is_full_is_offered_to_be_freed_where_a_person_is(talk: Talking) -> None:
    chatter = Chatter(lambda message: message[:1] * 30, max_context=200)
    long = "c" * 60  # with one exchange, the context would be nearly full again
    done = talk(chatter.lm, "a", "b", long, "yes", typing=True)
    assert re.search(
        r"the context holds 200, .* Drop the oldest 2 exchanges, which frees (\d+) tokens\? .*\n"
        r"  a\n  b\n",
        done.noted,
    )
    assert done.said == [(long, "c" * 30)]
    assert re.search(r"\(context: 1\d\d of 200 tokens used, \d+ cached, \d+ left\)", done.noted)
    kept = talk(chatter.lm, "a", "b", long, "no", typing=True)
    assert kept.errors[0].startswith("with this message the conversation has")
    assert kept.said == [("a", "a" * 30), ("b", "b" * 30)]
    unsure = talk(chatter.lm, "a", "b", long, "/drop 1", "Yes", typing=True)
    assert "yes or no?\n" in unsure.noted and unsure.said == [(long, "c" * 30)]
    chatter.ran()
    hopeless = talk(chatter.lm, "c" * 300, typing=True)
    assert "Drop" not in hopeless.noted and len(hopeless.errors) == 1
    assert chatter.ran() == 0


def test_an_answer_that_has_filled_the_context_goes_on_where_the_oldest_exchange_was(
    talk: Talking,
) -> None:
    long = "".join(random.Random(1).choices(string.ascii_lowercase, k=90))  # which is no loop

    def chatter() -> mlxgen.LanguageModel:
        answers = {"b": long}
        return Chatter(lambda said: answers.get(said, said[:1] * 20), max_context=150).lm

    full = talk(chatter(), "a", "b", typing=True)
    assert "(the context of 150 tokens is full; /drop" in full.noted
    assert full.said[1] != ("b", long)
    gone = talk(chatter(), "a", "b", "/continue", "yes", typing=True)
    assert "Drop the oldest exchange, which frees" in gone.noted
    assert gone.said == [("b", long)]
    kept = talk(chatter(), "a", "b", "/continue", "no", typing=True)
    assert kept.said == full.said and len(kept.errors) == 1


def test_in_a_pipe_a_full_context_says_what_to_do(talk: Talking) -> None:
    chatter = Chatter(lambda message: message[:1] * 30, max_context=150)
    done = talk(chatter.lm, "a", "b" * 100, "/undo", "c")
    assert re.search(r"the context of chatter holds 150.*/drop.*/undo.*/clear", done.errors[0])
    assert done.said == [("c", "c" * 30)]


# ---- interrupts and losses ----


def press_at(place: int, text: str, message: str = "") -> Callable[[str], str]:
    """Answers of ``text``, at whose character ``place`` somebody presses Ctrl-C; ``message``: to
    this one alone."""

    class Answer(str):
        def __getitem__(self, key: Any) -> str:
            if isinstance(key, slice) and key.start == place:
                signal.raise_signal(signal.SIGINT)
            return super().__getitem__(key)

    return lambda said: Answer(text) if message in said else said.upper()


@pytest.mark.parametrize("rest", ["efghijklmnop", "</think</think"])  # which may begin a mark
def test_an_interrupt_stops_the_answer_and_keeps_the_text_so_far(talk: Talking, rest: str) -> None:
    text = f"{THINK}{THOUGHT}abcd{rest}"
    done = talk(Chatter(press_at(len(text) - len(rest) + 1, text), thinks=True).lm, "one")
    assert re.fullmatch(rf"abcd{rest[0]}[{rest[1:3]}]*\n", done.shown)
    assert done.noted == "(stopped; /continue goes on)\n"
    assert done.said == [("one", done.shown.removesuffix("\n"))]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("line", ["no", "/edit no"])
def test_an_interrupt_before_anything_came_leaves_the_conversation_as_it_was(
    line: str, talk: Talking
) -> None:
    done = talk(Chatter(press_at(0, "abcdefghijklmnop", "no")).lm, "one", line)
    assert done.shown == "ONE\n"
    assert "(stopped before the answer began; the conversation is unchanged)" in done.noted
    assert done.said == [("one", "ONE")]


def test_an_ignored_interrupt_stays_ignored(talk: Talking) -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert talk(Chatter(press_at(3, "abcdef")).lm, "one").said == [("one", "abcdef")]
    finally:
        signal.signal(signal.SIGINT, before)


def test_on_several_machines_an_interrupt_or_a_lost_one_ends_the_conversation(
    talk: Talking, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Joined:
        lost = None

    def lose(message: str) -> str:
        raise MachineError("rank 1 (mac2) is lost")

    monkeypatch.setattr(generate, "join", Joined)
    monkeypatch.setattr(generate, "end_as_interrupted", lambda: None)
    stopped = talk(Chatter(press_at(5, "abcdefghijklmnop")).lm, "one", "two")
    assert (stopped.status, stopped.shown[:5]) == (generate.INTERRUPTED, "abcde")
    assert "/quit ends" in stopped.noted and not stopped.saved
    lost = talk(Chatter(lose).lm, "one", "two")
    assert lost.status == generate.LOST and "rank 1 (mac2) is lost" in lost.noted
