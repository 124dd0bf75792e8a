"""lm-format-enforcer and outlines-core, for real, through the adapters."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxgen.errors import OptionError
from mlxgen.filters import LMFormatEnforcer, OutlinesCore, Regex, Specification

from ..effort import tries
from .helpers import accepts, allowed, byte_level, constrained, ordinary

PATTERNS = [LMFormatEnforcer.regex, OutlinesCore]


@pytest.mark.parametrize("make", PATTERNS)
@settings(max_examples=tries(25))
@given(data=st.data())
def test_masks_of_a_pattern_are_those_of_our_own_engine(make: Any, data: st.DataObject) -> None:
    pattern = "(the|so)( [a-d]{1,3})*[.!]"
    theirs = constrained(make(pattern), vocabulary=byte_level())
    ours = constrained(Regex(pattern), vocabulary=byte_level())
    for _ in range(8):
        # Where text is forced, ours allows only the tokenizer's own spelling of it.
        assert ordinary(ours) <= ordinary(theirs)
        if len(ordinary(ours)) > 1:
            assert allowed(ours) == allowed(theirs)
        assert theirs.can_end() == ours.can_end()
        if ours.ended():
            break
        token = data.draw(st.sampled_from(sorted(ordinary(theirs))))
        theirs.advance(token)
        ours.advance(token)


def test_parsers_of_the_callers_are_taken() -> None:
    from lmformatenforcer import SequenceParser, StringParser, UnionParser

    def parser() -> Any:
        return SequenceParser(
            [StringParser("so "), UnionParser([StringParser("a"), StringParser("b")])]
        )

    spec = LMFormatEnforcer(parser)
    assert accepts(spec, "so a", byte_level()) and not accepts(spec, "so c", byte_level())
    with pytest.raises(OptionError, match="makes a parser"):
        LMFormatEnforcer(parser())
    with pytest.raises(OptionError, match="OutlinesCore: expected a string"):
        OutlinesCore(5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("package", "extra", "spec"),
    [
        ("lmformatenforcer", "lmfe", LMFormatEnforcer.regex("a")),
        ("outlines_core", "outlines", OutlinesCore("a")),
    ],
)
def test_a_missing_package_says_what_to_install(
    package: str, extra: str, spec: Specification, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(OptionError, match=rf"pip install 'mlxgen\[{extra}\]'") as missing:
        constrained(spec)
    assert missing.value.field == "filters"
