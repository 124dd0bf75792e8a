"""What the command line or a command of the chat asks for: files, the prompt, the options.

Raises ``OptionError``, with the name of the option or command, or ``PromptError`` for input that is
wrong by itself. Slow imports come only after the arguments are checked.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import select
import stat
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import OptionError, PromptError
from ..loading.checkpoint import path_of as expanded
from ..options.table import OPTIONS
from ..words import shortened
from .report import say

if TYPE_CHECKING:
    from ..filters import Specification
    from ..language_model import LanguageModel

FORMS = ("json", "regex", "lark")
"""The forms that answers can be made to match: a schema, an expression, a grammar."""
OFF = ("off", "none", "default")  # words for no value
DIGITS = 9  # of a number, at most
PATIENCE = 2.0  # seconds without standard input, after which a line says so
_PROGRAMS = (  # options that only a program can use, or that are defined separately
    *("max_resample", "hold_tokens", "allow_retract"),
    *("top_logprobs", "top_candidates", "prompt_logprobs"),
)
NUMBERS = tuple(
    name
    for name, option in OPTIONS.items()
    if option.type in (int, float, int | None) and name not in _PROGRAMS
)
FLAGS = tuple(n for n, option in OPTIONS.items() if option.type is bool and n not in _PROGRAMS)

# ---- files ----


def path_of(name: str, given: str) -> Path:
    """The path that was typed; ``~`` is the home folder."""
    if not given or "\0" in given:
        got = "one with a null character" if given else "nothing"
        raise OptionError(name, f"expected a file name, got {got}")
    return expanded(given)


def read_text(name: str, given: str) -> str:
    """The text of a file."""
    path = path_of(name, given)
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise OptionError(name, f"{path} cannot be read: {reason}") from error


def replaced(path: Path, text: str) -> None:
    """Write a file for its owner only; the old one stays if that fails. Raises ``OSError``."""
    beside = path.with_name(path.name + ".part")
    private = partial(os.open, mode=0o600)
    with open(beside, "w", encoding="utf-8", opener=private) as file:
        file.write(text)
    beside.replace(path)


def read_json(name: str, given: str) -> Any:
    """The value in a JSON file."""
    return parse_json(name, read_text(name, given), f" in {given}")


def parse_json(name: str, text: str, where: str = "") -> Any:
    """The value of a JSON text; ``where`` that was read, for the message."""
    try:
        return _loaded(text)
    except (ValueError, RecursionError) as error:
        raise OptionError(name, f"invalid JSON{where}: {error}") from error


def _loaded(text: str) -> Any:
    """The value of a JSON text. ``ValueError`` also for half of a surrogate pair, which is no text
    that could be kept or generated."""
    value = json.loads(text)
    json.dumps(value, ensure_ascii=False).encode()
    return value


def read_form(kind: str, name: str, given: str) -> Any:
    """What answers must match: a schema or its file, an expression, a grammar's file; by kind."""
    if kind == "regex":
        return given
    if kind == "lark":
        return read_text(name, given)
    return parse_json(name, given) if given.lstrip().startswith("{") else read_json(name, given)


# ---- the arguments of a command ----


def quoted(name: str, text: str) -> str:
    """A text without its quotes; a text in quotes is read as JSON."""
    if not text.startswith('"'):
        return text
    try:
        return str(_loaded(text))
    except ValueError as error:
        raise OptionError(name, f"expected a text between quotes, got {text}") from error


def is_number(text: str) -> bool:
    """Whether a text is a number of a few digits."""
    return text.isdecimal() and len(text) <= DIGITS


def number_in(name: str, text: str) -> int:
    """A number of a few digits."""
    if not is_number(text):
        raise OptionError(name, f"expected a number, got {shortened(text)!r}")
    return int(text)


def read_value(text: str) -> Any:
    """A value as JSON, or else as plain text; ``None`` stands for the default."""
    if text in OFF:
        return None
    try:
        return _loaded(text)
    except (ValueError, RecursionError):
        return text


def files_beside(begun: str) -> list[str]:
    """The files in the folder of a partly typed path, written the same way."""
    folder = Path(begun).parent if begun else Path()
    try:
        found = sorted(expanded(folder).iterdir())[:1000]
    except OSError:
        return []
    at = begun[: begun.rfind("/") + 1]
    return [f"{at}{file.name}{'/' if file.is_dir() else ''}" for file in found]


# ---- the prompt ----


def read_first(arguments: argparse.Namespace) -> str | None:
    """The first message of a conversation, if one was given."""
    for name in ("json", "image"):
        if getattr(arguments, name):
            raise OptionError(name, "cannot be used with --chat; leave out one of them")
    if arguments.text is None and arguments.prompt is None:
        return None
    if "-" in (arguments.text, arguments.prompt):
        raise OptionError("prompt", "with --chat, standard input is the conversation; leave out -")
    return read_prompt(arguments)


def read_prompt(arguments: argparse.Namespace) -> str:
    """The prompt's text, from the arguments or standard input."""
    if arguments.text is not None and arguments.prompt is not None:
        raise OptionError("prompt", "given twice; use either --prompt or the argument")
    text: str | None = arguments.prompt if arguments.text is None else arguments.text
    if text == "-" or (text is None and _is_piped() and not arguments.chat):
        text = _standard_input()
    elif text is None:
        raise PromptError('there is no prompt; pass one, such as mlxgen.generate "Hello"')
    elif _is_piped() and not (arguments.chat or arguments.raw or arguments.launched):
        text = "\n\n".join(filter(None, (text, _standard_input())))
    if not (text if arguments.raw else text.strip()):
        raise PromptError("the prompt is empty; pass some text")
    check_text(text, "prompt")
    check_text(arguments.system or "", "system message")
    for name in ("system", "image", "chat_template_args", "allow_control_tokens"):
        if arguments.raw and getattr(arguments, name):
            raise OptionError(
                name, "cannot be used with --raw, which has no chat template; leave out one of them"
            )
    if arguments.heal and not arguments.raw:
        raise OptionError("heal", "needs --raw, as a chat ends where a new message begins")
    return text


def check_text(text: str, what: str) -> None:
    """Raise ``PromptError`` for a lone surrogate, which an argument or a file may have."""
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise PromptError(f"the {what} is not valid UTF-8 text")


def _is_piped() -> bool:
    """Whether standard input is a pipe or a file, which has an end."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (AttributeError, OSError, ValueError):
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode)


def _standard_input() -> str:
    with contextlib.suppress(OSError, ValueError):  # a stream that is not a real file never waits
        if not select.select([sys.stdin], [], [], PATIENCE)[0]:
            say("waiting for standard input; to leave it out, add </dev/null")
    try:
        return sys.stdin.buffer.read().decode("utf-8").removesuffix("\n")
    except UnicodeDecodeError as error:
        raise PromptError(f"standard input is not UTF-8 text ({error.reason})") from error


def make_prompt(lm: LanguageModel, text: str, arguments: argparse.Namespace) -> Any:
    """The prompt for the engine: raw text or chat messages."""
    if arguments.raw:
        return text
    check_chats(lm)
    messages: list[dict[str, Any]] = [{"role": "user", "content": text}]
    if arguments.image:
        from ..images import Source

        images = [{"type": "image", "image": Source(file, "image")} for file in arguments.image]
        messages[0]["content"] = [*images, {"type": "text", "text": text}]
    if arguments.system is not None:
        messages.insert(0, {"role": "system", "content": arguments.system})
    from ..chat import Chat

    return Chat(
        messages,
        template=template_variables(arguments),
        allow_control_tokens=arguments.allow_control_tokens,
    )


def check_chats(lm: LanguageModel) -> None:
    """Raise ``PromptError`` for a model that cannot hold a conversation."""
    if not lm.tokenizer.has_chat_template:
        raise PromptError(f"{lm.name} has no chat template; use --raw to continue a text")


def template_variables(arguments: argparse.Namespace) -> dict[str, Any]:
    """The variables for the chat template, apart from the messages."""
    text = arguments.chat_template_args
    given = parse_json("chat_template_args", "{}" if text is None else text)
    if not isinstance(given, dict):
        raise OptionError(
            "chat_template_args",
            'expected a JSON object of variables, such as {"enable_thinking": false}',
        )
    return given


# ---- options ----


def engine_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """The options for ``LanguageModel.stream``, without those that were not given."""
    names = (*NUMBERS, *FLAGS, "dry_sequence_breakers", "loops", "stop", "banned")
    options = {name: getattr(arguments, name) for name in names}
    forms = forms_of(arguments)
    if forms:
        options["filters"] = [specification(kind, source) for kind, source in forms.items()]
    elif arguments.close_json:
        raise OptionError("close_json", "needs a filter; add --json-schema, --regex or --lark")
    if arguments.json:
        options["top_logprobs"] = arguments.top_logprobs or 0
    elif arguments.show_probs and not arguments.chat:  # a chat keeps them anyway
        options["top_logprobs"] = 0
    if arguments.top_logprobs is not None and not arguments.json:
        raise OptionError("top_logprobs", "only --json shows them; add it")
    if arguments.num_draft_tokens is not None and arguments.draft == "off":
        raise OptionError("num_draft_tokens", "has no effect with --draft off; leave out one")
    return {name: value for name, value in options.items() if value is not None}


def forms_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """The forms that the text must match, by kind: a schema, an expression, a grammar."""
    names = zip(FORMS, ("json_schema", "regex", "lark"), strict=True)
    given = [(kind, name, getattr(arguments, name)) for kind, name in names]
    return {kind: read_form(kind, name, form) for kind, name, form in given if form is not None}


def specification(kind: str, source: Any) -> Specification:
    """The filter of a form."""
    from ..filters import JsonSchema, Lark, Regex

    if kind == "json":
        return JsonSchema(source, closed=True)
    return Regex(source) if kind == "regex" else Lark(source)
