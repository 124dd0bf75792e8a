"""Files that are named in an argument, of the command line or of a command of the chat.

What cannot be read raises ``OptionError`` with the ``name`` of the option or command.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, TextIO

from ..errors import OptionError


def path_of(name: str, given: str) -> Path:
    """The path that was typed; ``~`` is the home folder."""
    if not given:
        raise OptionError(name, "expected a file name, got nothing")
    if "\0" in given:
        raise OptionError(name, "expected a file name, got one with a null character")
    try:
        return Path(given).expanduser()
    except RuntimeError:  # ~ of a user who does not exist
        return Path(given)


def read_text(name: str, given: str) -> str:
    """The text of a file."""
    path = path_of(name, given)
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise OptionError(name, f"{path} cannot be read: {reason}") from error


def opened(name: str, given: str) -> TextIO:
    """A file to write text to, whatever was in it."""
    path = path_of(name, given)
    try:
        return path.open("w", encoding="utf-8")
    except OSError as error:
        raise OptionError(name, f"{path} cannot be written: {error.strerror}") from error


def replaced(path: Path, text: str) -> None:
    """Write a file for its owner alone; the old one stays if that fails. Raises ``OSError``."""
    beside = path.with_name(path.name + ".part")
    with open(beside, "w", encoding="utf-8", opener=_private) as file:
        file.write(text)
    beside.replace(path)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def read_json(name: str, given: str) -> Any:
    """The value in a JSON file."""
    return parse_json(name, read_text(name, given), f" in {given}")


def parse_json(name: str, text: str, where: str = "") -> Any:
    """The value that a JSON text stands for; ``where`` it was read, for the message."""
    try:
        value = json.loads(text)
        json.dumps(value, ensure_ascii=False).encode()  # half of a surrogate pair is not text
    except (ValueError, RecursionError) as error:
        raise OptionError(name, f"invalid JSON{where}: {error}") from error
    return value


def read_form(kind: str, name: str, given: str) -> Any:
    """What answers must match: a schema or its file, an expression, a grammar's file; by kind."""
    if kind == "regex":
        return given
    if kind == "lark":
        return read_text(name, given)
    return parse_json(name, given) if given.lstrip().startswith("{") else read_json(name, given)
