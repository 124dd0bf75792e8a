"""Where the thinking in a text ends and the answer begins, however the text comes."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from mlxgen.chat.marks import Marks, Reading, Thinking, first_part
from mlxgen.chat.splitter import Splitter
from mlxgen.text import StopMatcher, TextDecoder, ThinkingMarks, Thoughts, Transcript
from mlxgen.tokens import Vocabulary
from tests.fakes import alphabet_tokenizer

from ..effort import table, tries
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


KINDS = {
    "opening": marks_of(TAGS, "possible", "[c]"),
    "open": marks_of(TAGS, "open", "[c]"),
    "headed": marks_of(HEADERS, "closed"),
}
ANY = st.sampled_from([*KINDS.values()])


def answer(marks: ThinkingMarks, pieces: Sequence[str]) -> str:
    return "".join(map(Thoughts(marks).advance, pieces))


@settings(max_examples=tries(150))
@given(ANY, operations(TEXTS))
def test_the_laws_of_a_part(marks: ThinkingMarks, operations: Operations) -> None:
    check_laws(
        lambda: Thoughts(marks),
        lambda thoughts, text: thoughts.advance(text),
        lambda t: (len(t), t.is_open, t.is_over, t.began, t.undecided),
        operations,
    )


@settings(max_examples=tries(150))
@given(ANY, TEXTS.flatmap(chunkings))
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


def test_the_thinking_lasts_from_mark_to_mark() -> None:
    for case in table("thoughts"):
        if "answer" in case:
            thoughts = Thoughts(KINDS[case["marks"]])
            found = "".join([thoughts.advance(character) for character in case["text"]])
            assert (thoughts.began, found) == (case["began"], case["answer"]), case
            assert thoughts.is_over and not thoughts.is_open, case


def test_a_stop_string_holds_for_the_answer_and_nothing_of_it_is_delivered() -> None:
    """``safe`` is the text that may be delivered before the stop."""
    vocabulary = Vocabulary.of(alphabet_tokenizer(["<t>", "</t>", "</t>\n\nNo"]))
    for case in table("thoughts"):
        if "stops" not in case:
            continue
        transcript = Transcript(
            TextDecoder(vocabulary),
            StopMatcher(case["stops"]),
            None,
            Thoughts(KINDS[case["marks"]]),
            stop_in_thoughts=case.get("anywhere", False),
        )
        safe, match = 0, None
        for piece in case["tokens"]:
            match = transcript.advance(int(vocabulary.spelling(piece.encode())[0]))
            if match is not None:
                break
            assert transcript.safe() >= safe, case
            safe = transcript.safe()
        assert (match and [match.start, match.end]) == case["match"], case
        end = safe if match is None else match.start
        assert transcript.decoder.slice(0, end) == case["safe"] and safe <= end, case
