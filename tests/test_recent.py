from __future__ import annotations

import gc
import weakref

from mlxgen.recent import Recent


class Value:
    """Something that can be referred to weakly."""


def test_a_value_is_made_once_until_it_is_forgotten_or_was_used_longest_ago() -> None:
    recent: Recent[str, Value] = Recent(2)
    first = {key: weakref.ref(recent.get(key, Value)) for key in ("a", "b")}
    assert recent.get("a", Value) is first["a"]()
    recent.get("c", Value)
    gc.collect()
    assert len(recent) == 2 and first["b"]() is None and first["a"]() is not None
    recent.forget("a")
    recent.forget("b")
    assert first["a"]() is None
