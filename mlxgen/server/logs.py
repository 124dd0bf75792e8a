"""The server's log, on standard error.

Owns the two formats, text and JSON lines, and how a failure is reported. Must never be given
prompts or completions at the default level: callers log counts and names, and only the type and
place of an unexpected exception, because its message may quote what a person wrote.
"""

from __future__ import annotations

import json
import logging
import sys
import time
import traceback
from typing import Any, Literal

logger = logging.getLogger("mlxgen.server")
_CAUSES = 8  # errors in a chain of causes


class TextFormatter(logging.Formatter):
    """One line for people: time, level, message, and ``name=value`` for the fields."""

    def format(self, record: logging.LogRecord) -> str:
        stamp = time.strftime("%H:%M:%S", time.localtime(record.created))
        fields = "".join(f" {name}={_bare(value)}" for name, value in _fields(record).items())
        line = f"{stamp} {record.levelname.lower()}: {_one_line(record.getMessage())}{fields}"
        return line + (f"\n{self.formatException(record.exc_info)}" if record.exc_info else "")


class JsonFormatter(logging.Formatter):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        entry: dict[str, Any] = {
            "time": f"{stamp}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "message": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False, default=str)


def set_up_logs(format: Literal["text", "json"], level: str) -> None:
    """Send the server's log to standard error, and uvicorn's, too, at the level debug."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if format == "json" else TextFormatter())
    logger.setLevel(level.upper())
    others = logging.getLogger("uvicorn")
    others.setLevel(logging.DEBUG if level == "debug" else logging.CRITICAL)  # we log ourselves
    library = logging.getLogger("mlxgen")  # messages about loading a model
    for source in (logger, library, others, logging.getLogger("asyncio")):
        source.handlers = [handler]
        source.propagate = False


def log(level: int, message: str, **fields: Any) -> None:
    """Log a message with fields."""
    logger.log(level, message, extra={"fields": fields})


def log_failure(what: str, error: BaseException, **fields: Any) -> None:
    """Log the type and place of an unexpected exception; all of it at the level debug."""
    if logger.isEnabledFor(logging.DEBUG):
        logger.error(what, exc_info=error, extra={"fields": fields})
        return
    kinds = [type(error).__name__]
    while error.__cause__ is not None and len(kinds) < _CAUSES:
        error = error.__cause__
        kinds.append(type(error).__name__)
    places = traceback.extract_tb(error.__traceback__)
    where = " < ".join(f"{p.filename}:{p.lineno} {p.name}" for p in reversed(places))
    log(logging.ERROR, what, error=" from ".join(kinds), at=where or "nowhere", **fields)


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    fields: dict[str, Any] = getattr(record, "fields", {})
    return fields


def _one_line(text: str) -> str:
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def _bare(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.3f}"
    text = _one_line(str(value))
    return json.dumps(text, ensure_ascii=False) if " " in text or not text else text
