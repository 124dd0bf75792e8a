"""Checks for ``Checked``: of Python, of JSON Lines, and by a command.

Each takes a finished piece and the text before it, and returns what is wrong with the piece, if
anything. In a chat, only the text between ``` and ``` is code and is checked. A text without these
marks is code if it begins like code.
"""

from __future__ import annotations

import ast
import builtins
import codeop
import json
import re
import shlex
import subprocess
import warnings
from collections.abc import Callable

from ..errors import OptionError

FENCE = "```"
_CODE = re.compile(
    r"\s*(?:[@#(\[{'\"]|[A-Za-z_][\w.]*\s*(?:[=(:\[,]|$)|"
    r"(?:async|assert|class|def|del|for|from|global|if|import|match|raise|return|try|while|with)\b)"
)
"""How a first line of Python begins, and prose hardly ever does."""
PATIENCE = 60.0  # seconds for a command


def python(piece: str, before: str) -> str | None:
    """Whether the code so far is Python, as far as it goes, and has no name that is bound nowhere.

    A function may call others that are defined later.
    """
    code = _code(before + piece)
    if code is None:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about escapes, which are the text's own
            goes_on = codeop.compile_command(code, symbol="exec") is None
    except (SyntaxError, ValueError, OverflowError) as error:
        return f"not Python: {error}"
    try:
        unknown = _unbound(ast.parse(code))
    except SyntaxError as error:
        return None if goes_on else f"not Python: {error}"
    return f"not defined: {', '.join(sorted(unknown))}" if unknown else None


def json_lines(piece: str, before: str) -> str | None:
    """Whether each line of a piece is JSON; empty lines are fine."""
    for line in piece.splitlines():
        try:
            if line.strip():
                json.loads(line)
        except ValueError as error:
            return f"not JSON: {error}"
    return None


def command(line: str) -> Callable[[str, str], str | None]:
    """A check by a command, which reads the piece, or only what is between ``` and ``` in it, on
    its standard input. Exit status 0 means that it is fine; otherwise the last line that the
    command prints is the complaint."""
    try:
        words = shlex.split(line)
    except ValueError as error:
        raise OptionError("check", f"{line!r} is not a command: {error}") from None
    if not words:
        raise OptionError("check", "expected a command, got an empty string")

    def check(piece: str, before: str) -> str | None:
        blocks = [block.partition("\n")[2] for block in piece.split(FENCE)[1::2]]
        given = "".join(blocks) if blocks else piece
        try:
            done = subprocess.run(
                words, input=given, capture_output=True, text=True, timeout=PATIENCE, check=False
            )
        except OSError as error:
            raise OptionError("check", f"{words[0]} cannot be run: {error}") from error
        except subprocess.TimeoutExpired:
            return f"{words[0]} took more than {PATIENCE:g} seconds"
        if done.returncode == 0:
            return None
        told = (done.stdout + done.stderr).strip().splitlines()
        return told[-1] if told else f"{words[0]} ended with status {done.returncode}"

    return check


def _code(text: str) -> str | None:
    """The code at the end of a text; ``None`` if it does not end in code."""
    if FENCE not in text:
        return text if not text.strip() or _CODE.match(text) else None
    parts = text.split(FENCE)
    if len(parts) % 2:
        return None
    return parts[-1].partition("\n")[2]  # after the name of the language


def _unbound(tree: ast.Module) -> set[str]:
    """The names that are read but bound nowhere, except functions that functions call."""
    bound = set(dir(builtins)) | {"__file__", "__name__"}
    read: set[str] = set()
    later: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Name(name, ast.Load()):
                read.add(name)
            case ast.Name(name) | ast.ExceptHandler(name=str(name)) | ast.arg(name):
                bound.add(name)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                bound.add(node.name)
                calls = [each for each in ast.walk(node) if isinstance(each, ast.Call)]
                later.update(each.func.id for each in calls if isinstance(each.func, ast.Name))
            case ast.alias(name, other):
                bound.add((other or name).partition(".")[0])
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                bound.add(name)
            case ast.MatchMapping(rest=str(name)):
                bound.add(name)
    if "*" in bound:
        return set()
    return read - bound - later
