"""The laws of a part, checked against fresh parts that are fed the kept history."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import pytest
from hypothesis import strategies as st

from mlxgen.errors import RewindError
from mlxgen.tokens import Token, Vocabulary

X = TypeVar("X")

Operations = list[tuple[str, Any]]


def operations(steps: st.SearchStrategy[X]) -> st.SearchStrategy[Operations]:
    """Histories of advances, rewinds to a share of the length, and forks that stray."""
    return st.lists(
        st.one_of(
            st.tuples(st.just("advance"), steps),
            st.tuples(st.just("advance"), steps),
            st.tuples(st.just("advance"), steps),
            st.tuples(st.just("rewind"), st.floats(0, 1.2)),
            st.tuples(st.just("fork"), st.lists(steps, max_size=4)),
        ),
        max_size=25,
    )


def check_laws(
    make: Callable[[], Any],
    feed: Callable[[Any, Any], Any],
    view: Callable[[Any], Any],
    operations: Operations,
    *,
    is_final: Callable[[Any], bool] = lambda result: False,
) -> None:
    """Laws 1 to 3. ``feed`` gives what an advance said; after a final one nothing is fed."""
    part = make()
    kept: list[Any] = []
    said: list[Any] = []
    for name, argument in operations:
        if name == "rewind":
            to = int(len(kept) * argument)
            part.rewind(to)
            del kept[to:], said[to:]
        elif name == "advance":
            if said and is_final(said[-1]):
                continue
            kept.append(argument)
            said.append(feed(part, argument))
        else:
            before = view(part)
            twin = part.fork()
            assert view(twin) == before
            last = said[-1] if said else None
            for step in argument:
                if is_final(last):
                    break
                last = feed(twin, step)
            assert view(part) == before
            twin.rewind(len(kept) // 2)
            assert view(part) == before
            twin = part.fork()
            part.rewind(0)
            assert view(twin) == before
            part = twin
        fresh = make()
        assert [feed(fresh, step) for step in kept] == said
        assert view(part) == view(fresh)
        assert len(part) == len(kept)
    with pytest.raises(RewindError):
        part.rewind(-1)
    assert len(part) == len(kept)


def tokens_with(vocabulary: Vocabulary, *pieces: bytes) -> list[Token]:
    """One token for each of these bytes."""
    tokens = [vocabulary.token_of(piece) for piece in pieces]
    assert None not in tokens
    return [token for token in tokens if token is not None]


def chunkings(text: str) -> st.SearchStrategy[list[str]]:
    """Ways to cut a text into pieces, some of them empty."""
    return st.lists(st.integers(0, len(text)), max_size=len(text) + 2).map(
        lambda cuts: [
            text[start:end]
            for start, end in zip([0, *sorted(cuts)], [*sorted(cuts), len(text)], strict=True)
        ]
    )
