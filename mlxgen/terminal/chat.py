"""The conversation on the standard streams of a process: ``python -m mlxgen.generate --chat``."""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

from ..errors import PromptError
from ..language_model import LanguageModel
from .answer import Answerer
from .asked import forms_of, template_variables
from .commands import COMMANDS, run_command
from .conversation import SETTABLE, Conversation, resumed
from .converse import TerminalChat
from .painter import Painter, legend, wants_colour
from .reader import pipe_reader, terminal_reader
from .report import report, say
from .screens import Look, PlainScreen, Wrapper, width


def converse(
    lm: LanguageModel,
    first: str | None,
    options: dict[str, Any],
    defaults: dict[str, Any],
    arguments: argparse.Namespace,
    *,
    notice: str | None = None,
) -> int:
    """Run a conversation on the standard streams of the process, until the input ends; returns the
    exit status. ``first`` is its first message, and ``notice`` is shown before it."""
    if not lm.tokenizer.has_chat_template:
        raise PromptError(f"{lm.name} has no chat template; use --raw to continue a text")
    begun = resumed() if arguments.resume else Conversation()
    options = {name: value for name, value in options.items() if name != "filters"}
    conversation = replace(
        begun.with_system(arguments.system or begun.system),
        template={**begun.template, **template_variables(arguments)},
        defaults=defaults,
        allow_control_tokens=arguments.allow_control_tokens,
    ).configured({**begun.settings, **options}, {**begun.forms, **forms_of(arguments)})
    if arguments.resume:
        say(f"going on after: {conversation.last.message.splitlines()[0][:60]}")
    typing = sys.stdin.isatty()
    if typing and sys.stdout.isatty():
        reader = terminal_reader(completions)
    else:
        prompted = typing or arguments.launched
        reader = pipe_reader(sys.stdin.buffer, sys.stderr if prompted else None)
    chat = TerminalChat(
        Answerer(lm),
        conversation,
        reader,
        run_command,
        out=sys.stdout,
        notes=sys.stderr,
        interactive=typing,
        launched=arguments.launched,
        look=look_of(sys.stdout, raw=arguments.as_written, tints=arguments.show_probs),
        colours=wants_colour(sys.stderr, os.environ),
        columns=lambda: width() if sys.stderr.isatty() else None,
        report=report if arguments.verbose else None,
    )
    if arguments.show_probs and chat.look is None:
        chat.note("no tints, because this is not a terminal or NO_COLOR is set; /tokens has marks")
    elif arguments.show_probs:
        chat.note(f"probability: {legend()}")
    return chat.run(first, notice=notice)


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
