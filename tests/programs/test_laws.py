"""Random programs: what the guide says is what comes out, and a copy learns the same."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxgen import Guide, Label
from tests.fakes.speaking import reciter
from tests.programs.helpers import carry_out, letters

from ..effort import tries

OPERATIONS = st.one_of(
    st.tuples(st.just("fixed"), st.sampled_from(["", "x", "yz ", "😀", "é"])),
    st.tuples(st.just("gen"), st.integers(0, 4)),
    st.tuples(st.just("until"), st.sampled_from(["d", "gh", "z"])),
    st.tuples(st.just("regex"), st.sampled_from(["[0-9]{2}", "(ab|abc)!", "same"])),
    st.tuples(st.just("choose"), st.just(0)),
    st.tuples(st.just("label"), st.just(0)),
    st.tuples(st.just("back"), st.integers(0, 3)),
    st.tuples(st.just("note"), st.sampled_from(["a", "b"])),
    st.tuples(st.just("fork"), st.integers(1, 2)),
)


async def perform(g: Guide, operation: tuple[str, Any], labels: list[tuple[Label, str]]) -> str:
    """One operation; what it should have appended to the text, by what the guide gave."""
    kind, value = operation
    if kind == "fixed":
        await g.fixed(value)
        return str(value)
    if kind == "gen":
        text = await g.gen(max_tokens=value)
        assert len(text) <= value  # fewer if the model ends it
        return text
    if kind == "until":
        text = await g.gen(stop=value, max_tokens=12)
        assert value not in text
        return text
    if kind == "regex":
        return await g.gen(regex=value)
    if kind == "choose":
        chosen = await g.choose(["yes", "no", "not"])
        assert chosen in ("yes", "no", "not")
        return chosen
    if kind == "label":
        labels.append((g.label(), g.text))
    if kind == "back" and labels:
        del labels[value + 1 :]
        label, text = labels[-1]
        await g.backtrack(label)
        assert g.text == text
    if kind == "note":
        g.append(value, "!")
        assert g.get(value)
    return ""


@pytest.mark.slow
@settings(max_examples=tries(80))
@given(
    operations=st.lists(OPERATIONS, min_size=1, max_size=8),
    before=st.lists(OPERATIONS, max_size=5),
    end_after=st.one_of(st.none(), st.integers(0, 20)),
)
def test_the_text_of_a_program_is_what_its_guide_gave(
    operations: list[tuple[str, Any]], before: list[tuple[str, Any]], end_after: int | None
) -> None:
    async def program(g: Guide) -> str:
        labels: list[tuple[Label, str]] = []
        learnt: list[str] = []
        for operation in [*before, *operations]:
            was = g.text
            if operation[0] == "fork":
                fork = await g.fork(operation[1] if len(g.branch) < 2 else 1)
                await g.fixed(str(fork.index))
                assert g.text == f"{was}{fork.index}"
                continue
            added = await perform(g, operation, labels)
            learnt.append(added)
            if operation[0] != "back":
                assert g.text == was + added
        return g.text

    run = carry_out(program, letters(end_after=end_after), max_tokens=400)
    assert not run.errors
    assert run.controller.value == run.results[()].text
    for result in run.results.values():
        assert result.finish_reason == "stop"
        assert len(result.text.encode()) == len(result.tokens)


PIECES = ["a", "b", "ab", "bc", "é", "😀", " stop", "st", "op"]


@settings(max_examples=tries(80))
@given(
    pieces=st.lists(st.sampled_from(PIECES), max_size=10),
    stop=st.sampled_from(["stop", "ab", "b", "é", "a😀", "cst"]),
    split=st.booleans(),
)
def test_a_stop_is_taken_back_with_the_tokens_that_hold_it(
    pieces: list[str], stop: str, split: bool
) -> None:
    said: list[Any] = [*"".join(pieces).encode()] if split else pieces
    speaker, got = reciter(said), list[Any]()
    text, piece = "".join(pieces).partition(stop)[0], speaker.vocabulary.piece
    kept = list[int]()  # the tokens that are whole before the stop
    for token in speaker.tokens(said):
        if len(b"".join(map(piece, [*kept, token]))) > len(text.encode()):
            break
        kept.append(token)

    async def program(g: Guide) -> None:
        before = len(g.tokens)
        got.extend([await g.gen(stop=stop), g.text, g.tokens[before:]])

    carry_out(program, speaker)
    rest = text.encode()[len(b"".join(map(piece, kept))) :]
    respelled = speaker.vocabulary.continue_with(rest) if rest else []
    assert got == [text, text, (*kept, *respelled)]
