"""Where prefixes are kept on disk, and how many bytes of them."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ..errors import OptionError
from ..options.rule import integer

_MOST = 32 << 30  # bytes, if nobody says how many
_SHARE = 10  # the part of what is free then
_LIMITS = integer(None, 1 << 20, 1 << 50)


@dataclass(frozen=True, slots=True)
class CacheDir:
    """A folder that exists, and the bytes that may be used there."""

    path: Path
    max_bytes: int

    @classmethod
    def of(cls, path: str | os.PathLike[str] | None, max_bytes: int | None) -> CacheDir | None:
        """What the options ``cache_dir`` and ``cache_dir_bytes`` say; the folder is created.

        By default as many bytes as a tenth of what is free there, what it holds included, and at
        most 32 GiB. Raises ``OptionError`` for ``cache_dir_bytes`` or ``cache_dir``.
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
                max_bytes = max(1 << 20, min(_MOST, free // _SHARE))
        except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: ~ of nobody
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
