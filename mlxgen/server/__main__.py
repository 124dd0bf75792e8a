"""``python -m mlxgen.server``, installed as ``mlxgen.server``; see ``settings``."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from .settings import read_settings
from .stop_signals import leave_at_once


def main(argv: Sequence[str] | None = None) -> int:
    """Run the server; returns the exit status."""
    settings = read_settings(argv)
    leave_at_once()
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")  # its warnings are not for users
    from .process import serve  # slow imports come after the arguments are checked

    return serve(settings)


if __name__ == "__main__":
    sys.exit(main())
