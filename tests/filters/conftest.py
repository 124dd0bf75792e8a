"""What tests of filters set up."""

from __future__ import annotations

import llguidance
import pytest


@pytest.fixture
def few_states(monkeypatch: pytest.MonkeyPatch) -> None:
    """An automaton is spent after 80 states."""
    limits = llguidance.LLParserLimits(max_lexer_states=80, verbose_errors=False)
    monkeypatch.setattr("mlxgen.filters.engine._LIMITS", limits)
