from __future__ import annotations

import gc
import weakref
from collections.abc import Callable

from mlxgen.recent import Recent


class Value:
    """Something that can be referred to weakly."""


def test_the_value_that_was_used_longest_ago_is_freed() -> None:
    made: dict[str, weakref.ref[Value]] = {}

    def maker(key: str) -> Callable[[], Value]:
        def make() -> Value:
            value = Value()
            made[key] = weakref.ref(value)
            return value

        return make

    recent: Recent[str, Value] = Recent(2)
    for key in ("a", "b", "a", "c"):
        recent.get(key, maker(key))
    gc.collect()
    assert len(recent) == 2
    assert made["b"]() is None
    assert made["a"]() is not None and made["c"]() is not None


def test_a_value_is_made_once_and_again_after_it_was_forgotten() -> None:
    recent: Recent[str, int] = Recent(2)
    assert recent.get("a", lambda: 1) == 1
    assert recent.get("a", lambda: 2) == 1
    recent.forget("a")
    recent.forget("b")
    assert recent.get("a", lambda: 2) == 2
