"""``python -m mlxgen.server``, installed as ``mlxgen.server``; see ``settings``."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from .clients import Served, print_configuration
from .settings import Settings, read_settings
from .stop_signals import leave_at_once


def main(argv: Sequence[str] | None = None) -> int:
    """Run the server, or print a client's configuration; returns the exit status."""
    settings = read_settings(argv)
    if settings.print_config is not None:
        print_configuration(settings.print_config, _served(settings))
        return 0
    leave_at_once()
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")  # its warnings are not for users
    from .process import serve  # slow imports come after the arguments are checked

    return serve(settings)


def _served(settings: Settings) -> Served:
    return Served.at(
        settings.host,
        settings.port,
        path=settings.root_path,
        model=next(iter(settings.models), None),
        key=settings.api_key,
        context=settings.max_context,
    )


if __name__ == "__main__":
    sys.exit(main())
