"""Imports mlx-lm without its hand on the limit of open files; see ``open_files``.

For its effect, before anything else that imports a part of mlx-lm.
"""

from __future__ import annotations

from ..open_files import limit_kept

with limit_kept():
    import mlx_lm.utils  # noqa: F401
