from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxgen.errors import FilterError, GrammarError, OptionError
from mlxgen.filters import After, AllOf, Choice, Constraint, JsonSchema, Regex

from ..effort import tries
from .helpers import (
    accepts,
    allowed,
    alphabet,
    byte_level,
    constrained,
    feed,
    ordinary,
    pieces,
    sentencepiece,
    state,
    takes,
)

NUMBER = Regex("[0-9]+")


def token(text: str) -> int:
    found = alphabet().token_of(text.encode())
    assert found is not None
    return found


def test_text_is_free_before_the_trigger_and_constrained_after_it() -> None:
    constraint = constrained(After("=>", NUMBER))
    assert constraint.can_end()
    assert ordinary(constraint) == set(range(alphabet().size)) - alphabet().eos
    feed(constraint, "the name =")
    assert constraint.can_end()
    feed(constraint, ">")
    assert not constraint.can_end()
    assert pieces(constraint) == {b"%d" % digit for digit in range(10)}
    assert feed(constraint, "12").can_end()


def test_text_without_the_trigger_is_free_text() -> None:
    constraint = constrained(After("=>", NUMBER))
    assert constraint.mask() is None
    assert feed(constraint, b"any\xff text = >").mask() is None


def test_a_required_trigger_has_to_come_before_the_end() -> None:
    constraint = feed(constrained(After("=>", NUMBER, required=True)), "abc")
    assert not constraint.can_end()
    assert not allowed(constraint) & alphabet().eos
    assert feed(constraint, "=>7").can_end()


def test_only_the_first_trigger_counts() -> None:
    constraint = constrained(After("=", Regex("[0-9=]+")))
    assert feed(constraint, "a=1=2=").can_end()


@pytest.mark.parametrize("text", ["aab", "xaaab", "abaabaab", "aaaaab"])
def test_a_trigger_that_overlaps_itself_is_found_where_it_first_ends(text: str) -> None:
    constraint = feed(constrained(After("aab", NUMBER)), text[: text.index("aab") + 3])
    assert pieces(constraint) == {b"%d" % digit for digit in range(10)}


def test_a_token_that_continues_after_the_trigger_is_allowed_if_what_follows_is() -> None:
    # "abc" is one token; after "ab" it has "c".
    assert token("abc") in allowed(constrained(After("ab", Regex("c+"))))
    constraint = constrained(After("ab", Regex("c+")))
    constraint.advance(token("abc"))
    assert constraint.can_end() and pieces(constraint) == {b"c"}

    refusing = constrained(After("ab", NUMBER))
    assert token("abc") not in allowed(refusing)
    assert token("ab") in allowed(refusing)
    with pytest.raises(FilterError):
        refusing.advance(token("abc"))
    assert len(refusing) == 0 and refusing.can_end()


def test_such_tokens_are_found_in_the_middle_of_the_trigger_too() -> None:
    constraint = feed(constrained(After('x"', NUMBER)), "x")  # tokens: '":' and '"}'
    assert token('":') not in allowed(constraint) and token('"}') not in allowed(constraint)
    assert token('"') in allowed(constraint)
    assert token('":') in allowed(feed(constrained(After('x"', NUMBER)), "y"))
    json_like = feed(constrained(After('x"', Regex("}+"))), "x")
    assert token('"}') in allowed(json_like) and token('":') not in allowed(json_like)


@settings(max_examples=tries(80))
@given(st.data())
def test_after_any_tokens_the_mask_is_what_a_search_in_the_text_says(data: st.DataObject) -> None:
    vocabulary = alphabet()
    trigger = data.draw(st.sampled_from(["ab", "a", "aba", '":', "cab"]))
    then = data.draw(st.sampled_from(["[abc]{1,3}", "c", '[":}]*', "[0-9]"]))
    constraint = constrained(After(trigger, Regex(then)))
    usable = [token(text) for text in ("a", "b", "c", "ab", "abc", '"', ":", '":', '"}', "1")]
    text = b""
    for _ in range(data.draw(st.integers(0, 6))):
        expected = {t for t in usable if right(text + vocabulary.piece(t), trigger, then)}
        may = allowed(constraint)
        assert {t for t in usable if t in may} == expected
        assert {t for t in usable if constraint.validate([t])} == expected
        if not expected:
            break
        chosen = data.draw(st.sampled_from(sorted(expected)))
        constraint.advance(chosen)
        text += vocabulary.piece(chosen)


def right(text: bytes, trigger: str, then: str) -> bool:
    """Whether a text may be the start of what ``After(trigger, Regex(then))`` allows."""
    import regex

    _, found, behind = text.partition(trigger.encode())
    if not found:
        return True
    return regex.fullmatch(then, behind.decode(), partial=True) is not None


def test_the_trigger_may_be_the_text_of_a_special_token_or_the_token_itself() -> None:
    vocabulary = byte_level()
    for name in (b"<tool_call>", b"<|im_start|>"):
        [marker] = [t for t in vocabulary.added if vocabulary.piece(t) == name]
        for trigger in (name.decode(), marker, [marker]):
            constraint = constrained(After(trigger, NUMBER), vocabulary=vocabulary)
            assert constraint.mask() is None
            constraint.advance(marker)
            assert pieces(constraint) == {b"%d" % digit for digit in range(10)}
        spelled = feed(constrained(After(name.decode(), NUMBER), vocabulary=vocabulary), name)
        assert not spelled.can_end()
        not_text = feed(constrained(After(marker, NUMBER), vocabulary=vocabulary), name)
        assert not_text.can_end()


def test_a_trigger_of_several_tokens_is_found_across_false_starts() -> None:
    a, b = token("a"), token("b")
    constraint = constrained(After([a, a, b], NUMBER))
    for step in (a, a, a):
        constraint.advance(step)
        assert constraint.can_end()
    constraint.advance(b)
    assert not constraint.can_end()


def test_rewinds_and_forks_cross_the_trigger_in_both_directions() -> None:
    constraint = constrained(After("ab", Regex("cx+")))
    states = [state(constraint)]
    for step in (token("x"), token("a"), token("b"), token("c"), token("x")):
        constraint.advance(step)
        states.append(state(constraint))
    twin = constraint.fork()
    for length in (4, 3, 2, 0):
        constraint.rewind(length)
        assert state(constraint) == states[length]
    assert state(twin) == states[5]
    constraint.advance(token("abc"))  # the trigger and the first character after it
    assert pieces(constraint) == {b"x"}
    constraint.rewind(0)
    assert state(constraint) == states[0]


def test_what_follows_may_be_anything_that_can_be_bound() -> None:
    spec = After("</think>", AllOf(JsonSchema({"type": "integer"}), Regex(r"\s*[1-3]+")))
    assert accepts(spec, "hm</think>\n\n12")
    assert not accepts(spec, "hm</think>\n\n4")
    assert accepts(After("a", After("b", Choice(["c"]), required=True)), "a..bc")
    assert After("a", NUMBER) == After("a", NUMBER) and hash(After([1], NUMBER))


def test_text_after_the_trigger_keeps_its_leading_space() -> None:
    constraint = feed(constrained(After("=", NUMBER), vocabulary=sentencepiece()), "=")
    assert not takes(constraint, " 1") and takes(constraint, "1")


def test_forced_and_hinted_tokens() -> None:
    constraint = constrained(After("=>", Choice(["xyz"]), required=True))
    assert constraint.forced() == []
    assert constraint.hint() == [ord("="), ord(">")]
    assert feed(constraint, "a=").hint() == [ord(">")]
    assert feed(constraint, ">").forced() == [ord("x"), ord("y"), ord("z")]
    assert constrained(After("=>", NUMBER)).hint() == []
    vocabulary = byte_level()
    marked = constrained(After("<|im_start|>", NUMBER, required=True), vocabulary=vocabulary)
    assert [vocabulary.piece(t) for t in marked.hint()] == [b"<|im_start|>"]


def test_a_grammar_that_cannot_be_met_is_found_before_anything_is_generated() -> None:
    with pytest.raises(GrammarError, match="unclosed group"):
        constrained(After("x", Regex("(")))


@pytest.mark.parametrize("trigger", ["", [], (), 1.5, None, True, ["a"], [1, True], "\ud800"])
def test_what_is_not_a_trigger_is_refused(trigger: object) -> None:
    with pytest.raises(OptionError, match="After"):
        After(trigger, NUMBER)  # type: ignore[arg-type]


def test_tokens_that_can_never_come_are_refused_as_triggers() -> None:
    with pytest.raises(OptionError, match=r"expected trigger tokens .* got 5000"):
        constrained(After(5000, NUMBER))
    with pytest.raises(OptionError, match="expected trigger tokens"):
        constrained(After(min(alphabet().eos), NUMBER))
    with pytest.raises(OptionError, match="expected a specification"):
        After("a", "b")  # type: ignore[arg-type]


def test_tables_of_triggers_are_shared_and_forgotten() -> None:
    from mlxgen.filters.after import _TRIGGERS
    from mlxgen.recent import Recent

    for index in range(_TRIGGERS + 5):
        constrained(After(f"trigger {index}", NUMBER))
    kept: Recent[bytes, object] = alphabet().derived("triggers", lambda: Recent(1))
    assert len(kept) == _TRIGGERS
    constraint: Constraint = constrained(After("trigger 0", NUMBER))
    assert not feed(constraint, "trigger 0").can_end()
