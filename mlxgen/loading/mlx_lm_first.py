"""Imports mlx-lm without letting it lower the limit of open files; see ``open_files``.

Import this for its effect, before anything that imports a part of mlx-lm. It is a file by itself,
because the other files of this room that are imported early must be quick to import.
"""

from __future__ import annotations

from ..open_files import limit_kept

with limit_kept():
    import mlx_lm.utils  # noqa: F401
