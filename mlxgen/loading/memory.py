"""How the memory of a device is divided, decided in one place, and how much may be kept on disk.

Owns the limits of both, the plan, and the setting of the wired limit. Must never know models or
requests: it gets their sizes. Invariant: a plan is pure arithmetic, the same on every machine; only
``wire`` changes anything.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from ..errors import MemoryLimitError, OptionError
from ..options.rule import integer

CACHE_SHARE = 0.5  # of the bytes left, for KV caches if the caller sets no limit
_LEAST = 1 << 26  # bytes for KV caches, and for a piece of a prompt, however little is left
_RESERVE_SHARE, _RESERVE = 1 / 16, 2 << 30  # of the device, and the most
_FREE_SHARE, _MOST = 1 / 10, 32 << 30  # of the free space on a disk, and the most, by default
_LIMITS = integer(None, 1 << 20, 1 << 50)  # bytes on disk


def memory_limit() -> tuple[int, str]:
    """The most bytes for weights and caches, and the words that introduce the number."""
    import mlx.core as mx

    device = mx.device_info()
    if (most := wirable()) is not None:
        return most, "the device recommends at most"
    if "total_memory" in device:  # CUDA
        return int(device["total_memory"]), "the device has"
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), "this machine has"


def device_name() -> str:
    """The name of the device."""
    import mlx.core as mx

    info = mx.device_info()
    return str(info.get("device_name") or info.get("architecture") or mx.default_device())


def held_bytes() -> int:
    """The bytes that MLX holds now."""
    import mlx.core as mx

    return int(mx.get_active_memory())


def check_memory(what: str, needed: int) -> None:
    """Raise ``MemoryLimitError`` if ``what`` does not fit next to what MLX already holds."""
    import mlx.core as mx

    limit, whose = memory_limit()
    used = mx.get_active_memory()
    if needed + used <= limit:
        return
    beside = f" beside the {in_words(used)} in use" if used > 5e6 else ""
    raise MemoryLimitError(
        f"{what} need {in_words(needed)}{beside}, but {whose} {in_words(limit)}; use a smaller or"
        " more quantised model, or load it anyway with ignore_memory_limit"
    )


def wirable() -> int | None:
    """How many bytes Metal recommends to use, and allows to wire; ``None`` without Metal."""
    import mlx.core as mx

    most = mx.device_info().get("max_recommended_working_set_size")
    return None if most is None else int(most)


def reserve_of(device: int) -> int:
    """The bytes of a device that no model may use."""
    return min(int(device * _RESERVE_SHARE), _RESERVE)


def needed_by(weights: int) -> int:
    """The fewest bytes in which a model with weights of this size is usable."""
    return weights + 2 * _LEAST


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """How the memory of a device is divided, in bytes.

    - ``device``: all that may be used.
    - ``weights``: the model's, and whatever else MLX held when the plan was made.
    - ``caches``: for all KV caches, including the prefix cache.
    - ``activations``: for what a pass over a piece of a prompt holds besides these.
    - ``reserve``: for the rest, such as the logits of a step and MLX's own buffers.
    - ``wired``: what the system keeps from being paged out; 0 if that was not changed.
    - ``sharers``: how many models have a plan like this one, each with its own ``caches`` and
      ``activations``; ``weights`` are those of all of them.
    """

    device: int
    weights: int
    caches: int
    activations: int
    reserve: int
    wired: int = 0
    sharers: int = 1

    @classmethod
    def of(
        cls,
        device: int,
        weights: int,
        *,
        caches: int | None = None,
        piece: Callable[[int], int] = lambda caches: 0,
        sharers: int = 1,
    ) -> MemoryPlan:
        """Divide the memory of a device.

        ``caches``: what the caller allows for KV, by default half of what is left. ``piece`` takes
        that size, and gives the bytes for the largest piece of a prompt, at the end of a prompt
        that fills it. ``sharers``: how many models get equal parts of all but the ``weights``,
        which are their total; the plan is for one of them.
        """
        reserve = reserve_of(device)
        left = (device - weights - reserve) // sharers
        if caches is None:
            caches = max(_LEAST, int(left * CACHE_SHARE))
        elif sharers > 1:  # the caller may not have known how many models there are
            caches = min(caches // sharers, max(_LEAST, left - _LEAST))
        activations = max(_LEAST, min(piece(caches), left - caches))
        return cls(
            device=device,
            weights=weights,
            caches=caches,
            activations=activations,
            reserve=reserve,
            sharers=sharers,
        )

    def with_caches(self, caches: int | None) -> MemoryPlan:
        """The same with another limit for KV; ``None`` keeps it."""
        if caches is None:
            return self
        room = self.device - self.weights - self.reserve - caches
        return replace(self, caches=caches, activations=max(_LEAST, min(self.activations, room)))

    @property
    def left(self) -> int:
        """The bytes for the KV of a single sequence, and for running it."""
        left = (self.device - self.weights - self.reserve) // self.sharers
        return max(left, self.caches + self.activations)

    @property
    def to_wire(self) -> int:
        """The bytes to wire: all that the plan uses, and never more than the device has."""
        running = self.sharers * (self.caches + self.activations)
        return min(self.device, self.weights + running + self.reserve)

    def wire(self, limit: int | None = None) -> MemoryPlan:
        """Keep what the plan uses, or ``limit`` bytes, from being paged out, in the whole process;
        returns the plan with ``wired`` set."""
        import mlx.core as mx

        wired = self.to_wire if limit is None else limit
        mx.set_wired_limit(wired)
        return replace(self, wired=wired)

    def __str__(self) -> str:
        parts = [
            f"{in_words(self.weights)} for weights",
            f"{in_words(self.caches)} for KV caches and prefixes",
            f"{in_words(self.activations)} for activations",
            f"{in_words(self.reserve)} in reserve",
        ]
        wired = f"up to {in_words(self.wired)} wired" if self.wired else "nothing wired"
        shared = f" (one of {self.sharers} models)" if self.sharers > 1 else ""
        return f"{', '.join(parts)}, of {in_words(self.device)}{shared}; {wired}"


def in_words(size: int) -> str:
    """Bytes for people."""
    return f"{size / 1e9:.2f} GB"


def context_left(weights: int, bytes_each: int, device: int) -> int:
    """How many tokens of KV the plan holds next to the weights, at ``bytes_each`` bytes for each;
    negative or 0 if the weights do not fit."""
    left = device - weights - reserve_of(device)
    return int(left * CACHE_SHARE) // bytes_each


# ---- the disk ----


@dataclass(frozen=True, slots=True)
class CacheDir:
    """A folder that exists, and the bytes that may be used there."""

    path: Path
    max_bytes: int

    @classmethod
    def of(cls, path: str | os.PathLike[str] | None, max_bytes: int | None) -> CacheDir | None:
        """The folder of ``cache_dir``, which is created, with the limit of ``cache_dir_bytes``.

        The default limit is a tenth of the free space there, counting the folder's own files as
        free, and at most 32 GiB. Raises ``OptionError`` for ``cache_dir_bytes`` or ``cache_dir``.
        """
        if max_bytes is not None:
            max_bytes = _LIMITS.check("cache_dir_bytes", max_bytes)
        if path is None:
            if max_bytes is not None:
                raise OptionError("cache_dir_bytes", "has no meaning without cache_dir; pass that")
            return None
        if not isinstance(path, str | os.PathLike) or not isinstance(os.fspath(path), str):
            raise OptionError(
                "cache_dir", f"expected the path of a folder, got {type(path).__name__}"
            )
        if not os.fspath(path):
            raise OptionError("cache_dir", "expected the path of a folder, got an empty string")
        try:
            folder = Path(path).expanduser().absolute()
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if max_bytes is None:
                free = shutil.disk_usage(folder).free + _held(folder)
                max_bytes = max(1 << 20, min(_MOST, int(free * _FREE_SHARE)))
        except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: ~ of no user
            reason = error.strerror if isinstance(error, OSError) else error
            raise OptionError(
                "cache_dir", f"{path} cannot be used as a folder: {reason}; pass another path"
            ) from error
        return cls(folder, max_bytes)


def _held(folder: Path) -> int:
    """The bytes of the files in a folder, from which another process may remove some."""
    total = 0
    with os.scandir(folder) as files:
        for file in files:
            with suppress(FileNotFoundError):
                total += file.stat(follow_symlinks=False).st_size
    return total
