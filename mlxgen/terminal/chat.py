"""The conversation on the standard streams of a process: ``python -m mlxgen.generate --chat``."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TextIO

from ..errors import PromptError
from ..language_model import LanguageModel
from .answer import Answerer
from .commands import COMMANDS, run_command
from .conversation import SETTABLE, Conversation
from .converse import Report, TerminalChat
from .painter import Painter, legend, wants_colour
from .reader import pipe_reader, terminal_reader
from .screens import Look, PlainScreen, Wrapper, width


def converse(
    lm: LanguageModel,
    conversation: Conversation,
    *,
    first: str | None = None,
    notice: str | None = None,
    report: Report | None = None,
    raw: bool = False,
    tints: bool = False,
    launched: bool = False,
) -> int:
    """Run a conversation on the standard streams of the process; returns the exit status.

    ``raw``: show answers as they are written, not as Markdown. ``tints``: show how likely each
    token was. ``launched``: by ``mlx.launch``, which passes on what is typed at its terminal.
    """
    if not lm.tokenizer.has_chat_template:
        raise PromptError(f"{lm.name} has no chat template; use --raw to continue a text")
    typing = sys.stdin.isatty()
    if typing and sys.stdout.isatty():
        reader = terminal_reader(completions)
    else:
        reader = pipe_reader(sys.stdin.buffer, sys.stderr if typing or launched else None)
    chat = TerminalChat(
        Answerer(lm),
        conversation,
        reader,
        run_command,
        out=sys.stdout,
        notes=sys.stderr,
        interactive=typing,
        launched=launched,
        look=look_of(sys.stdout, raw=raw, tints=tints),
        colours=wants_colour(sys.stderr, os.environ),
        columns=_columns,
        report=report,
    )
    if tints and chat.look is None:
        chat.note("no tints, because this is not a terminal or NO_COLOR is set; /tokens has marks")
    elif tints:
        chat.note(f"probability: {legend()}")
    return chat.run(first, notice=notice)


def _columns() -> int | None:
    return width() if sys.stderr.isatty() else None


def look_of(out: TextIO, *, raw: bool, tints: bool) -> Look | None:
    """How answers are shown on ``out``; ``None`` is plainly."""
    if not wants_colour(out, os.environ):
        return None
    if tints:
        return lambda exact: PlainScreen(out, Painter())
    if not out.isatty():
        return lambda exact: PlainScreen(out)
    if raw:
        return lambda exact: PlainScreen(out, wrapper=None if exact else Wrapper(width))
    from .markdown import MarkdownScreen  # slow to import

    return lambda exact: PlainScreen(out) if exact else MarkdownScreen(out)


def completions(line: str) -> list[str]:
    """What the last word of a line can be: commands, and the first argument of some."""
    name, space, rest = line.partition(" ")
    if not line.startswith("/") or " " in rest:
        return []
    if not space:
        return [f"/{each} " for each in COMMANDS if f"/{each}".startswith(name)]
    if name in ("/save", "/load", "/json", "/lark"):
        files = Path(rest).parent if rest else Path()
        try:
            found = sorted(files.expanduser().iterdir())[:1000]
        except OSError:
            return []
        at = rest[: len(rest) - len(rest.rpartition("/")[2])]
        words = [f"{at}{file.name}{'/' if file.is_dir() else ''}" for file in found]
    else:
        known = {"/set": SETTABLE, "/help": COMMANDS, "/tokens": ["all"]}
        words = list(known.get(name, ["off"] if name in ("/system", "/regex") else ()))
    return [word for word in words if word.startswith(rest)]
