"""How many files this process may have open at a time.

Owns the limit. mlx-lm sets it when it is imported: it fails if the system allows fewer than 4,096,
and lowers the limit if the system allows more. If ``loading.mlx_lm_first`` is imported before any
part of mlx-lm, the limit stays as it is or rises.
"""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Iterator
from pathlib import Path

_MANY = 1 << 30  # stands for no limit


def raise_limit(wanted: int) -> int:
    """Allow ``wanted`` open files if the system does; returns how many are allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return _MANY
    highest = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft >= highest:
        return soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest, hard))
    except (OSError, ValueError):  # macOS has a limit below the one that it reports
        return soft
    return highest


def count_open() -> int:
    """How many files are open now."""
    return sum(1 for _ in Path("/dev/fd").iterdir()) - 1  # minus the one that lists them


@contextlib.contextmanager
def limit_kept() -> Iterator[None]:
    """In this context, setting the limit can only raise it, as far as the system allows."""
    set_limit = resource.setrlimit

    def raise_only(kind: int, limits: tuple[int, int]) -> None:
        if kind == resource.RLIMIT_NOFILE:
            raise_limit(limits[0])
        else:
            set_limit(kind, limits)

    resource.setrlimit = raise_only
    try:
        yield
    finally:
        resource.setrlimit = set_limit
