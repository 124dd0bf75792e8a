"""The way to a valid end, compared with a list of all texts that are valid."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from mlxgen import Choice
from mlxgen.engine.request.ways import Closing
from mlxgen.filters import Constraint
from mlxgen.tokens import Vocabulary
from tests.fakes import alphabet_tokenizer

from ...effort import tries
from ...text.laws import Operations, operations

VOCABULARY = Vocabulary.of(alphabet_tokenizer())  # a token is a letter
texts = st.lists(st.text("ab", min_size=1, max_size=7), min_size=1, max_size=5, unique=True)
budgets = st.integers(1, 8)


class Sentence:
    """The beginning of one of the ``valid`` texts, and the way to its end."""

    def __init__(self, valid: list[str], budget: int) -> None:
        self.valid = valid
        self.budget = budget
        self.text = ""
        self.constraint = Constraint([Choice(valid)], VOCABULARY, VOCABULARY.size)
        self.closing = Closing(self.constraint, budget)
        self.closing.look(0)

    @property
    def ends(self) -> list[str]:
        """What may follow to the end, within the budget."""
        length = len(self.text)
        fitting = [word for word in self.valid if len(word) <= self.budget]
        return [word[length:] for word in fitting if word.startswith(self.text)]

    def advance(self, choice: int) -> None:
        """The next letter: that of the way if it is forced, else any that is valid."""
        closing, before = self.closing, len(self.text)
        if closing.forcing:
            letters = [chr(token) for token in (closing.way or ())[:1]]
        else:
            beginnings = [word for word in self.valid if word.startswith(self.text)]
            letters = sorted({word[before] for word in beginnings if len(word) > before})
        if not letters or before == self.budget:
            return
        letter = letters[choice % len(letters)]
        known = closing.way is not None
        self.constraint.advance(ord(letter))
        self.text += letter
        taken = closing.look(len(self.text), ord(letter))
        assert taken == (closing.at == len(self.text))
        if known and not self.ends:
            assert not taken
        if not taken:
            assert known and closing.forcing
            self.constraint.rewind(before)
            self.text = self.text[:before]
        assert (closing.way is not None) >= known

    def rewind(self, to: int) -> None:
        goes_back = to < len(self.text)
        self.constraint.rewind(to)
        self.closing.rewind(to)
        self.text = self.text[:to]
        assert not (goes_back and self.closing.forcing)

    def fork(self) -> Sentence:
        twin = object.__new__(Sentence)
        twin.valid, twin.budget, twin.text = self.valid, self.budget, self.text
        twin.constraint = self.constraint.fork()
        twin.closing = self.closing.fork(twin.constraint)
        return twin

    def view(self) -> Any:
        closing, way = self.closing, self.closing.way
        return self.text, closing.at, way and tuple(way), closing.forcing, closing.why

    def check(self) -> None:
        closing = self.closing
        assert closing.at == len(self.text) == len(self.constraint)
        if closing.way is not None:
            assert "".join(map(chr, closing.way)) in self.ends
        else:  # what is found is nearly the shortest, so it must be if everything fits
            assert max(map(len, self.valid)) > self.budget
            assert not closing.forcing and "no valid end was found" in closing.why


@settings(max_examples=tries(200))
@given(texts, budgets, operations(st.integers(0, 1)))
def test_a_way_to_a_valid_end_is_kept_within_the_budget(
    valid: list[str], budget: int, ops: Operations
) -> None:
    sentence = Sentence(valid, budget)
    sentence.check()
    for name, argument in ops:
        if name == "advance":
            sentence.advance(argument)
        elif name == "rewind":
            sentence.rewind(int(len(sentence.text) * argument))
        else:
            before, twin = sentence.view(), sentence.fork()
            assert twin.view() == before
            for choice in argument:
                twin.advance(choice)
                twin.check()
            twin.rewind(len(twin.text) // 2)
            assert sentence.view() == before
            twin = sentence.fork()
            sentence.rewind(0)
            assert twin.view() == before
            sentence = twin
        sentence.check()


@settings(max_examples=tries(100))
@given(texts, st.integers(0, 2), st.sets(st.sampled_from("ab")))
def test_another_way_is_taken_if_the_first_step_is_excluded(
    valid: list[str], steps: int, excluded: set[str]
) -> None:
    sentence = Sentence(valid, 8)
    for _ in range(steps):
        sentence.advance(1)
    closing, others = sentence.closing, [end for end in sentence.ends if end[:1] not in excluded]
    if "" in sentence.ends:
        return
    step = closing.avoid({ord(letter) for letter in excluded})
    assert bool(step) == bool(others)
    if step:
        assert closing.way is not None and list(step) == list(closing.way[:1])
        assert "".join(map(chr, closing.way)) in others
    else:
        assert closing.way is None and not closing.forcing and "excluded" in closing.why
