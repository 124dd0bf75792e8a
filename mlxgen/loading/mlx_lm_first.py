"""Imports mlx-lm without letting it lower the limit of open files; see ``open_files``.

Import this for its effect, before anything that imports a part of mlx-lm. It is a file by itself,
as the others of this room that are imported early have to be quick.
"""

from __future__ import annotations

from ..open_files import limit_kept

with limit_kept():
    import mlx_lm.utils  # noqa: F401
