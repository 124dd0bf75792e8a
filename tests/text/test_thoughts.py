"""Where the thinking in a text ends and the answer begins, however the text comes."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxgen.chat.marks import Marks, Reading, Thinking, first_part
from mlxgen.chat.splitter import Splitter
from mlxgen.text import StopMatch, StopMatcher, TextDecoder, ThinkingMarks, Thoughts, Transcript
from mlxgen.tokens import Vocabulary
from tests.fakes import alphabet_tokenizer

from ..effort import tries
from .laws import Operations, check_laws, chunkings, operations

TAGS = Marks(think_start="<t>", think_end="</t>")
HEADERS = Marks(
    transitions={
        "header": [("self:", "reasoning"), ("user:", "normal")],
        "reasoning": [(";", "header")],
        "normal": [(";", "header")],
    },
    initial="header",
)
TEXTS = st.lists(
    st.sampled_from(["<t>", "</t>", "<", "/t>", "a", " ", "\n", "é", "self:", "user:", ";", "[c]"]),
    max_size=12,
).map("".join)


def marks_of(marks: Marks, thinking: Thinking, call: str | None = None) -> ThinkingMarks:
    edges = marks.edges(None if call is None else [call])
    return ThinkingMarks(first_part(marks, thinking), marks.think_start or "", edges)


OPENING, OPEN = marks_of(TAGS, "possible", "[c]"), marks_of(TAGS, "open", "[c]")
HEADED = marks_of(HEADERS, "closed")
KINDS = st.sampled_from([OPENING, OPEN, HEADED])


def answer(marks: ThinkingMarks, pieces: Sequence[str]) -> str:
    return "".join(map(Thoughts(marks).advance, pieces))


@settings(max_examples=tries(150))
@given(KINDS, operations(TEXTS))
def test_the_laws_of_a_part(marks: ThinkingMarks, operations: Operations) -> None:
    check_laws(
        lambda: Thoughts(marks),
        lambda thoughts, text: thoughts.advance(text),
        lambda t: (len(t), t.is_open, t.is_over, t.began, t.undecided),
        operations,
    )


@settings(max_examples=tries(150))
@given(KINDS, TEXTS.flatmap(chunkings))
def test_how_a_text_is_cut_does_not_matter(marks: ThinkingMarks, pieces: list[str]) -> None:
    assert answer(marks, pieces) == answer(marks, ["".join(pieces)])


@settings(max_examples=tries(150))
@given(st.sampled_from(["open", "possible"]), TEXTS)
def test_the_answer_is_what_is_read_as_content(thinking: Thinking, text: str) -> None:
    splitter = Splitter(Reading(marks=TAGS, thinking=thinking))
    spans = [*splitter.push(text), *splitter.flush()]
    content = "".join([span.text for span in spans if span.kind == "content"])
    begins = thinking == "possible" and "<t>".startswith(text.lstrip())  # it may go on
    given = answer(marks_of(TAGS, thinking), [text])
    # What a reader makes of more marks in the answer does not matter here: it stays the answer.
    assert begins or given == content or "t>" in given


@pytest.mark.parametrize(
    ("marks", "text", "begins", "answer"),
    [
        (OPENING, "<t>so</t>\n\nYes", 3, "Yes"),
        (OPENING, " \n<t>so</t>Yes", 5, "Yes"),
        (OPENING, "Yes <t>so</t>", -1, "Yes <t>so</t>"),
        (OPENING, "<b>Yes", -1, "<b>Yes"),
        (OPEN, "so<t>so</t>Yes", 0, "Yes"),
        (OPEN, "so [c]call", 0, "call"),
        (HEADED, "to self:hm;to user:Yes; self:", 8, "Yes; self:"),
    ],
)
def test_the_thinking_lasts_from_mark_to_mark(
    marks: ThinkingMarks, text: str, begins: int, answer: str
) -> None:
    thoughts = Thoughts(marks)
    found = "".join([thoughts.advance(character) for character in text])
    assert (thoughts.began, found) == (begins, answer)
    assert thoughts.is_over and not thoughts.is_open


# ---- stops --------------------------------------------------------------------------------------

VOCABULARY = Vocabulary.of(alphabet_tokenizer(["<t>", "</t>", "</t>\n\nNo"]))


def stopped(
    text: Sequence[str], stops: Sequence[str], marks: ThinkingMarks, *, anywhere: bool = False
) -> tuple[StopMatch | None, str]:
    """The first stop, and the text that was safe before it."""
    transcript = Transcript(
        TextDecoder(VOCABULARY),
        StopMatcher(stops),
        None,
        Thoughts(marks),
        stop_in_thoughts=anywhere,
    )
    safe = ""
    for piece in text:
        (token,) = VOCABULARY.spelling(piece.encode())
        match = transcript.advance(int(token))
        assert transcript.decoder.slice(0, transcript.safe()).startswith(safe)
        if isinstance(match, StopMatch):
            assert transcript.safe() - len(match.stop) <= match.start >= len(safe)
            return match, transcript.decoder.slice(0, match.start)
        safe = transcript.decoder.slice(0, transcript.safe())
    return None, safe


def test_a_stop_string_holds_for_the_answer_alone() -> None:
    text = ["<t>", "N", "o", "</t>", "\n", "\n", "Y", "N", "o"]
    assert stopped(text, ["No"], OPENING) == (StopMatch("No", 12, 14), "<t>No</t>\n\nY")
    assert stopped(text, ["No"], OPENING, anywhere=True) == (StopMatch("No", 3, 5), "<t>")
    assert stopped(text, ["\n"], OPENING) == (None, "<t>No</t>\n\nYNo")


def test_a_stop_may_complete_with_the_token_that_ends_the_thinking() -> None:
    assert stopped(["N", "o", "</t>\n\nNo"], ["No"], OPEN)[0] == StopMatch("No", 8, 10)


def test_a_stop_that_begins_as_the_thinking_may_is_found_and_never_delivered() -> None:
    assert stopped([" ", "<", "t", "x"], ["<t"], OPENING) == (StopMatch("<t", 1, 3), " ")
    assert stopped([" ", "<", "t", ">", "x"], ["<t"], OPENING)[0] is None
