"""What a person does, and what the page says: every case of ``tests/data/page/acts.json``."""

from __future__ import annotations

from typing import Any

import pytest

from .driving import Chat, read

CASES = [
    pytest.param(case["steps"], id=case["what"], marks=[pytest.mark.slow] * case.get("slow", 0))
    for case in read("acts.json")
]


@pytest.mark.whole
@pytest.mark.parametrize("steps", CASES)
def test_the_page_does_what_a_person_expects(chat: Chat, steps: list[list[Any]]) -> None:
    chat.act(steps)
