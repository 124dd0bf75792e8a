"""How many files this process may have open at a time: a server needs more than macOS's 256.

Owns the limit. Importing mlx-lm sets it, which fails if the system allows fewer than 4,096, and
lowers it if the system allows more. If ``loading.mlx_lm_first`` is imported before any part of
mlx-lm, the limit stays as it is or rises. This is a file by itself as the commands raise the limit
before that import, and as the room of tokens, which is below, has an import of its own.
"""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Callable, Iterator
from typing import TypeAlias

SetLimit: TypeAlias = Callable[[int, tuple[int, int]], None]

FILES = 4096  # enough for everything but connections, and for most servers
_MANY = 1 << 30  # stands for no limit


def raise_limit(wanted: int, set_limit: SetLimit | None = None) -> int:
    """Allow ``wanted`` open files if the system does; returns how many are allowed."""
    set_limit = set_limit or resource.setrlimit
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return _MANY
    highest = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    while highest > soft:
        try:
            set_limit(resource.RLIMIT_NOFILE, (highest, hard))
        except (OSError, ValueError):  # macOS says there is no hard limit, but has one
            highest //= 2
        else:
            return highest
    return soft


@contextlib.contextmanager
def limit_kept() -> Iterator[None]:
    """In this context, setting the limit can only raise it, as far as the system allows."""
    set_limit = resource.setrlimit

    def raise_only(kind: int, limits: tuple[int, int]) -> None:
        if kind == resource.RLIMIT_NOFILE:
            raise_limit(limits[0], set_limit)
        else:
            set_limit(kind, limits)

    resource.setrlimit = raise_only
    try:
        yield
    finally:
        resource.setrlimit = set_limit
