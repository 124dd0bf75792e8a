"""What a server that starts in the process of the tests leaves behind."""

from __future__ import annotations

import logging
import signal
from collections.abc import Iterator

import pytest


@pytest.fixture
def process_as_it_was() -> Iterator[None]:
    """A server takes over some loggers and signals of its process."""
    loggers = [
        logging.getLogger(name) for name in ("mlxgen.server", "mlxgen", "uvicorn", "asyncio")
    ]
    before = [(logger.handlers, logger.level, logger.propagate) for logger in loggers]
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    signals = {number: signal.getsignal(number) for number in numbers}
    yield
    for number, handler in signals.items():
        signal.signal(number, handler)
    for logger, (handlers, level, propagate) in zip(loggers, before, strict=True):
        logger.handlers, logger.propagate = handlers, propagate
        logger.setLevel(level)
