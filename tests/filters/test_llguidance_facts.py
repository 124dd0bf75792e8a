"""What is true of llguidance 1.9, as facts about our filters wherever that is possible.

If one of these fails with a newer llguidance, the code that it names may be simplified or
must be changed: read the docstrings of ``mlxgen/filters/matcher.py``.
"""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Iterator, Sequence

import llguidance
import numpy as np
import pytest
from llguidance import LLExecutor, LLMatcher, LLTokenizer

from mlxgen.errors import DeadEndError, FilterError, GrammarError
from mlxgen.filters import (
    Choice,
    Constraint,
    JsonSchema,
    Lark,
    Regex,
    fill_masks,
    no_tokens,
    tokens_of,
)
from mlxgen.filters.compiled import GrammarEngine
from mlxgen.filters.matcher import GrammarFilter
from mlxgen.tokens import Vocabulary

from .helpers import (
    accepts,
    allowed,
    alphabet,
    byte_level,
    constrained,
    feed,
    ordinary,
    pieces,
    state,
    takes,
)


class Plain:
    """The least that LLTokenizer wants."""

    is_tokenizer_wrapper = True
    bos_token_id = None
    special_token_ids: Sequence[int] = ()

    def __init__(self, eos: int | None) -> None:
        self.eos_token_id = eos
        self.tokens = [bytes([byte]) for byte in range(256)] + [b"<end>"]

    def __call__(self, text: str) -> list[int]:
        return list(text.encode())


def raw_matcher(pattern: str) -> LLMatcher:
    tokenizer = LLTokenizer(Plain(256), eos_token=[256])  # type: ignore[arg-type]
    return LLMatcher(tokenizer, LLMatcher.grammar_from_regex(pattern), log_level=0)


def raw_mask(matcher: LLMatcher) -> list[int]:
    row = no_tokens(257)
    matcher.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)
    return [int(token) for token in tokens_of(row)]


def test_the_version_is_the_one_that_was_tried() -> None:
    assert llguidance.__version__.startswith("1.")


# ---- the tokenizer -------------------------------------------------------------------------


def test_the_given_size_of_the_vocabulary_is_ignored_so_the_pieces_are_padded() -> None:
    tokenizer = LLTokenizer(Plain(256), n_vocab=512, eos_token=[256])  # type: ignore[arg-type]
    assert tokenizer.vocab_size == 257
    vocabulary = alphabet()
    assert GrammarEngine.of(vocabulary, 512).size == 512
    assert GrammarEngine.of(vocabulary, 10).size == vocabulary.size


def test_end_tokens_are_given_in_full_as_it_guesses_otherwise() -> None:
    assert LLTokenizer(Plain(7)).eos_tokens == [7]  # type: ignore[arg-type]
    vocabulary = byte_level()
    assert len(vocabulary.eos) == 2
    constraint = constrained(Regex("a*"), vocabulary=vocabulary)
    assert vocabulary.eos < allowed(constraint)


def test_a_vocabulary_without_end_tokens_gets_an_id_without_a_token() -> None:
    vocabulary = Vocabulary(alphabet().tokenizer)
    vocabulary.eos = frozenset()
    constraint = constrained(Regex("ab?"), vocabulary=vocabulary)
    assert pieces(feed(constraint, "a")) == {b"b"}
    feed(constraint, "b")
    assert constraint.can_end() and constraint.ended()
    assert allowed(constraint) == set()


def test_the_tokenizer_is_made_once_for_a_vocabulary_and_a_size() -> None:
    vocabulary = alphabet()
    assert GrammarEngine.of(vocabulary, vocabulary.size) is GrammarEngine.of(
        vocabulary.tokenizer, 3
    )
    assert GrammarEngine.of(vocabulary, vocabulary.size) is not GrammarEngine.of(
        vocabulary, vocabulary.size + 1
    )


# ---- errors --------------------------------------------------------------------------------


def test_errors_are_permanent_and_look_like_an_early_end() -> None:
    matcher = raw_matcher("abc")
    assert not matcher.consume_token(ord("x"))
    assert matcher.is_error()
    assert raw_mask(matcher) == [256]  # which any sampler takes for "the text is complete"
    assert not matcher.reset()
    assert matcher.is_error()


@pytest.mark.parametrize("call", ["consume", "validate", "rollback"])
def test_wrong_tokens_ids_out_of_range_and_long_rollbacks_cause_such_errors(call: str) -> None:
    matcher = raw_matcher("abc")
    match call:
        case "consume":
            matcher.consume_token(9999)
        case "validate":
            matcher.validate_tokens([9999])
        case "rollback":
            matcher.rollback(1)
    assert matcher.is_error()


def test_none_of_them_reaches_the_engine_through_a_constraint() -> None:
    constraint = constrained(Regex("abc"))
    before = state(constraint)
    end = min(alphabet().eos)
    for token in (ord("x"), 9999, -1, alphabet().size, end):
        with pytest.raises(FilterError):
            constraint.advance(token)
        assert constraint.validate([token]) == 0
        assert constraint.validate([ord("a"), token]) == 1
    constraint.rewind(0)
    constraint.rewind(5)
    assert state(constraint) == before
    assert feed(constraint, "abc").ended()


def test_tried_tokens_are_refused_without_harm() -> None:
    matcher = raw_matcher("abc")
    assert matcher.try_consume_tokens([ord("a"), ord("x")]) == 1
    assert not matcher.is_error()
    assert raw_mask(matcher) == [ord("b")]


def spend(constraint: Constraint) -> None:
    """As a mask does when it meets a limit of the automaton that it shares."""
    running = constraint.parts[0]
    assert isinstance(running, GrammarFilter)
    running.matcher.consume_token(0)  # an error, for good
    assert running.matcher.is_error()


@pytest.mark.parametrize("then", ["mask", "advance", "rewind", "fork", "forced"])
def test_a_filter_whose_matcher_has_an_error_continues_with_another(then: str) -> None:
    constraint = feed(constrained(Regex("[a-z]*x[a-z]{6}")), "axb")
    expected = state(feed(constraint.fork(), "c"))
    spend(constraint)
    match then:
        case "mask":
            assert b"z" in pieces(constraint) and b"Z" not in pieces(constraint)
        case "rewind":
            constraint.rewind(1)
            feed(constraint, "xb")
        case "fork":
            constraint = constraint.fork()
        case "forced":
            assert constraint.forced() == []
    assert state(feed(constraint, "c")) == expected


def ways(letters: int) -> Iterator[str]:
    return map("".join, itertools.product("abc", repeat=letters))


def test_a_spent_automaton_makes_its_other_copies_refuse_good_tokens_without_an_error() -> None:
    limits = llguidance.LLParserLimits(max_lexer_states=60, verbose_errors=False)
    tokenizer = LLTokenizer(Plain(256), eos_token=[256])  # type: ignore[arg-type]
    grammar = LLMatcher.grammar_from_regex("[a-c]*c[a-c]{7}")
    first = LLMatcher(tokenizer, grammar, log_level=0, limits=limits)
    second = first.deep_copy()
    for letter in "".join(ways(6)):
        first.try_consume_tokens([ord(letter)])
        raw_mask(first)
        if first.is_error():
            break
    assert "too many states" in first.get_error()
    assert second.try_consume_tokens([ord("a")]) == 0
    assert not second.is_error()


@pytest.mark.usefixtures("few_states")
def test_rows_that_share_an_automaton_do_not_suffer_when_one_of_them_spends_it() -> None:
    spec = Regex("[a-c]*c[a-c]{7}")  # its last letters make 256 states, and 80 are allowed
    waiting = [feed(constrained(spec), "ab") for _ in range(5)]
    expected = [state(constraint) for constraint in waiting]
    for text in itertools.islice(ways(6), 0, None, 7):  # a few states each, together too many
        constraint = constrained(spec)
        for letter in text:
            assert takes(constraint, "abcabc")
            assert constraint.mask() is not None
            feed(constraint, letter)
    fill_masks(waiting, threads=2)
    assert [state(constraint) for constraint in waiting] == expected
    assert takes(waiting[0], "abc") and not waiting[1].can_end()
    twin = waiting[2].fork()
    waiting[3].rewind(1)
    feed(waiting[3], "b")
    assert [state(twin), state(waiting[3])] == expected[2:4]


@pytest.mark.usefixtures("few_states")
def test_a_limit_that_a_filter_meets_alone_is_an_error_with_the_reason() -> None:
    constraint = constrained(Regex("[a-z ]*(a|b)[a-z ]{7}x"), vocabulary=byte_level())
    with pytest.raises(FilterError, match=r"Regex.*too many states"):
        for letter in "".join(ways(5)):
            feed(constraint, letter).mask()
    constraint.rewind(1)
    assert takes(constraint, "abc")


# ---- end tokens ----------------------------------------------------------------------------


def test_end_tokens_are_sometimes_recorded_and_sometimes_not() -> None:
    may_end = raw_matcher("a*")
    must_end = raw_matcher("a")
    for matcher in (may_end, must_end):
        matcher.try_consume_tokens([ord("a")])
    assert may_end.try_consume_tokens([256]) == 1
    assert must_end.try_consume_tokens([256]) == 0


def test_end_tokens_are_never_fed_and_allowed_exactly_where_the_text_may_end() -> None:
    vocabulary = byte_level()
    constraint = constrained(Regex("ab?"), vocabulary=vocabulary)
    assert not allowed(constraint) & vocabulary.eos
    feed(constraint, "a")
    assert vocabulary.eos < allowed(constraint)
    for end in vocabulary.eos:
        with pytest.raises(FilterError, match="never fed"):
            constraint.advance(end)
    feed(constraint, "b")
    assert allowed(constraint) == vocabulary.eos
    assert constraint.ended()
    constraint.rewind(1)
    assert pieces(constraint) == {b"b"}


def test_an_end_token_that_a_grammar_names_is_a_dead_end_at_once() -> None:
    vocabulary = byte_level()
    end = max(vocabulary.eos)
    constraint = constrained(Lark(f'start: "a" <[{end}]> "b"'), vocabulary=vocabulary)
    with pytest.raises(DeadEndError, match="Lark"):
        feed(constraint, "a").mask()


# ---- masks ---------------------------------------------------------------------------------


def test_a_row_must_have_exactly_the_engines_words() -> None:
    matcher = raw_matcher("a")
    for words in (8, 10):
        row = np.zeros(words, dtype=np.int32)
        with pytest.raises(ValueError, match="buffer size"):
            matcher.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)


@pytest.mark.parametrize("width", [1, 31, 32, 33, 100, 128, 200, 268, 270, 300, 512])
def test_logits_may_be_narrower_or_wider_than_the_tokenizer(width: int) -> None:
    vocabulary = alphabet()
    constraint = constrained(Regex("[\x00-~]+"), vocab_size=width)
    known = set(range(min(width, vocabulary.size)))
    expected = {t for t in known if vocabulary.piece(t) and t not in vocabulary.eos}
    expected = {t for t in expected if max(vocabulary.piece(t)) < 127}
    assert ordinary(constraint) == expected
    mask = constraint.mask()
    assert mask is not None
    assert len(mask) == (width + 31) // 32
    if width < vocabulary.size:
        with pytest.raises(FilterError, match=r"outside the vocabulary|ends the text"):
            constraint.advance(width)


# ---- going back ----------------------------------------------------------------------------


def rollback_works(lark: str) -> bool:
    tokenizer = LLTokenizer(Plain(256), eos_token=[256])  # type: ignore[arg-type]
    matcher = LLMatcher(tokenizer, LLMatcher.grammar_from_lark(lark), log_level=0)
    assert matcher.try_consume_tokens(list(b"aa")) == 2
    return matcher.rollback(1)


@pytest.mark.parametrize(
    ("attribute", "works"),
    [("max_tokens=9", False), ('suffix="y"', True), ("lazy", True)],
)
def test_max_tokens_disables_rollback_and_suffix_and_lazy_do_not(
    attribute: str, works: bool
) -> None:
    pattern = "[a-x ]+y" if attribute == "lazy" else "[a-x ]+"
    lark = f'start: text "z"\ntext[{attribute}]: /{pattern}/'
    assert rollback_works(lark) is works
    constraint = feed(constrained(Lark(lark)), "aa")
    expected = state(constraint)
    feed(constraint, "bb")
    constraint.rewind(2)  # by a replay if it must be
    assert state(constraint) == expected


def test_a_rewind_from_after_the_end_works() -> None:
    constraint = constrained(JsonSchema({"const": [1, 2]}))
    states = [state(constraint)]
    for byte in b"[1,2]":
        constraint.advance(byte)
        states.append(state(constraint))
    assert constraint.ended()
    for length in (5, 4, 2, 0):
        constraint.rewind(length)
        assert state(constraint) == states[length]


# ---- literals and tokens -------------------------------------------------------------------


class Parsing(Plain):
    """Parses ``<end>`` in text, as Hugging Face tokenizers do with added tokens."""

    special_token_ids = (256,)

    def __init__(self) -> None:
        super().__init__(257)
        self.tokens = [*self.tokens, b"<eos>"]

    def __call__(self, text: str) -> list[int]:
        tokens: list[int] = []
        for index, part in enumerate(text.split("<end>")):
            tokens += ([256] if index else []) + list(part.encode())
        return tokens


def test_a_literal_that_spells_a_special_token_dead_ends_if_text_is_parsed_for_them() -> None:
    tokenizer = LLTokenizer(Parsing(), eos_token=[257])  # type: ignore[arg-type]
    matcher = LLMatcher(tokenizer, LLMatcher.grammar_from_regex("a<end>b"), log_level=0)
    matcher.try_consume_tokens([ord("a")])
    row = no_tokens(258)
    matcher.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)
    assert tokens_of(row).tolist() == [256]  # allowed, and then
    assert matcher.try_consume_tokens([256]) == 0  # refused


@pytest.mark.parametrize("text", ["<tool_call>", "<|im_start|>", "<|im_end|>", "<|endoftext|>"])
@pytest.mark.parametrize("forcing", [True, False])
def test_a_literal_that_is_the_text_of_an_added_token_is_spelled(text: str, forcing: bool) -> None:
    vocabulary = byte_level()
    spec = JsonSchema({"const": f"a {text} b"}, whitespace=None)
    constraint = constrained(spec, vocabulary=vocabulary)
    tokens: list[int] = []
    while not constraint.ended():
        run = constraint.forced() if forcing else [min(ordinary(constraint))]
        for token in run:
            constraint.advance(token)
        tokens += run
    assert json.loads(vocabulary.decode(tokens)) == f"a {text} b"
    assert not vocabulary.special.intersection(tokens)


def test_a_token_that_is_meant_is_written_as_a_token() -> None:
    vocabulary = byte_level()
    for name in ("<tool_call>", "<|im_start|>"):
        [token] = [t for t in vocabulary.added if vocabulary.piece(t) == name.encode()]
        for lark in (f'start: "a" {name} "b"', f'start: "a" <[{token}]> "b"'):
            constraint = feed(constrained(Lark(lark), vocabulary=vocabulary), "a")
            assert ordinary(constraint) == {token}
            constraint.advance(token)
            assert feed(constraint, "b").ended()
        assert accepts(Lark(f'start: "a{name}" // {name}\n'), f"a{name}", vocabulary)


def test_special_tokens_are_not_text_and_other_added_tokens_are() -> None:
    vocabulary = byte_level()
    constraint = constrained(Regex("(?s:.*)"), vocabulary=vocabulary)
    assert not ordinary(constraint) & vocabulary.special
    assert b"<tool_call>" in pieces(constraint)


# ---- forced text ---------------------------------------------------------------------------


def test_forced_text_is_spelled_as_the_tokenizer_spells_it() -> None:
    vocabulary = byte_level()
    constraint = constrained(Choice(["the thing"]), vocabulary=vocabulary)
    assert constraint.forced() == vocabulary.continue_with(b"the thing")
    assert pieces(constraint) == {b"the"}  # the mask is as narrow
    assert takes(constraint, "the thing")  # other spellings are taken nevertheless


def test_forced_text_stops_before_a_token_that_free_text_might_lengthen() -> None:
    constraint = constrained(Regex("a(b|bcd)"), vocabulary=alphabet())
    assert constraint.forced() == []  # "ab" and "abc" are tokens
    assert pieces(constraint) == {b"a", b"ab", b"abc"}


def test_forced_text_never_goes_past_a_place_where_the_text_may_end() -> None:
    constraint = constrained(Regex("xy(zz)?"))
    run = constraint.forced()
    assert run == [ord("x"), ord("y")]
    for token in run:
        constraint.advance(token)
    assert constraint.can_end()
    assert constraint.forced() == []
    assert feed(constraint, "z").forced() == [ord("z")]


def test_a_grammar_that_forces_text_without_end_is_refused_or_cut_into_runs() -> None:
    with pytest.raises(GrammarError, match="Too many items"):
        constrained(Lark('start: endless\nendless: "xy" endless'))
    later = constrained(Lark('start: "a" endless | "b"\nendless: "xy" endless'))
    assert pieces(feed(later, "a")) == {b"x"}
    assert 0 < len(later.forced()) <= 1024
    later.rewind(0)
    assert feed(later, "b").ended()


# ---- JSON, free text, SentencePiece --------------------------------------------------------


def test_free_text_swallows_a_marker_unless_it_is_lazy_or_the_marker_is_a_token() -> None:
    greedy = 'start: TEXT "<x>" "1"\nTEXT: /(.|\\n)*/'
    lazy = 'start: text "1"\ntext[lazy]: /(.|\\n)*<x>/'
    assert not constrained_after(greedy, "ab<x>1")
    assert constrained_after(lazy, "ab<x>1")
    vocabulary = byte_level()
    constraint = constrained(Lark('start: TEXT <tool_call> "1"\nTEXT: /.*/'), vocabulary=vocabulary)
    [token] = [t for t in vocabulary.added if vocabulary.piece(t) == b"<tool_call>"]
    feed(constraint, "ab").advance(token)
    assert pieces(constraint) == {b"1"}


def constrained_after(lark: str, text: str) -> bool:
    """Whether the text is over after ``text``."""
    return feed(constrained(Lark(lark)), text).ended()


# ---- copies and threads --------------------------------------------------------------------


def test_copies_that_share_an_automaton_work_in_threads_at_once() -> None:
    vocabulary = byte_level()
    schema = {
        "type": "object",
        "properties": {"the thing": {"type": "string"}},
        "required": ["the thing"],
    }
    spec = JsonSchema(schema)
    text = b'{"the thing": "so sad"}'
    alone = masks(constrained(spec, vocabulary=vocabulary), text)
    results: list[list[bytes]] = []
    rows = [constrained(spec, vocabulary=vocabulary) for _ in range(4)]
    threads = [
        threading.Thread(target=lambda c=row: results.append(masks(c, text))) for row in rows
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [alone] * 4


def masks(constraint: Constraint, text: bytes) -> list[bytes]:
    seen = []
    for byte in text:
        mask = constraint.mask()
        assert mask is not None
        seen.append(mask.tobytes())
        constraint.advance(constraint.vocabulary.token_of(bytes([byte])) or 0)
    return seen


def test_the_executor_fills_rows_of_one_block_and_takes_its_number_of_threads() -> None:
    matchers = [raw_matcher(pattern) for pattern in ("a", "b", "c")]
    rows = np.zeros((3, 9), dtype=np.int32)
    work = [(matcher, index) for index, matcher in enumerate(matchers)]
    LLExecutor(2).unsafe_compute_mask_ptr(work, rows.ctypes.data, 36, 3)
    assert [tokens_of(row).tolist() for row in rows] == [[97], [98], [99]]
