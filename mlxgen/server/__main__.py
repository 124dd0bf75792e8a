"""``python -m mlxgen.server``, installed as ``mlxgen.server``; see ``settings``."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence

from ..errors import MachineError, OptionError
from ..load import join
from .clients import Served, print_configuration
from .logs import log, set_up_logs
from .settings import NAME, Settings, explained, make_parser, read_settings
from .stop_signals import leave_at_once


def main(argv: Sequence[str] | None = None) -> int:
    """Run the server, or print a client's configuration; returns the exit status.

    On several machines, only rank 0 gets past ``join``.
    """
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")  # its warnings are not for users
    leave_at_once()
    try:
        machines = join()
    except MachineError as error:
        print(f"{NAME}: error: {error}", file=sys.stderr, flush=True)
        return 1
    settings = read_settings(argv)
    if settings.print_config is not None:
        try:
            served = _served(settings)
        except OptionError as error:
            make_parser().error(explained(error))
        print_configuration(settings.print_config, served)
        return 0
    set_up_logs(settings.log_format, settings.log_level)
    if settings.loads_at_once:
        log(logging.INFO, f"loading {next(iter(settings.models), 'the demo model')} ...")
    from .process import serve  # a slow import, after the arguments are checked

    return serve(settings, machines=machines)


def _served(settings: Settings) -> Served:
    from .catalogue import Catalogue

    return Served.at(
        settings.host,
        settings.port,
        model=Catalogue.of(settings).default.name,
        path=settings.root_path,
        key=next(iter(settings.api_keys), None),
        context=settings.max_context,
    )


if __name__ == "__main__":
    sys.exit(main())
