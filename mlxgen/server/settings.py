"""The server's settings, and the command line that they come from.

Owns names, defaults and ranges. Must never know how a setting is used. Invariant: a ``Settings``
is within its ranges; what depends on the model is checked when that is loaded.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal
from urllib.parse import urlsplit

from .. import __version__
from ..arguments import Parser
from ..errors import OptionError
from ..loading.sampling_defaults import CHOICES, SamplingChoice
from ..options.rule import ABOVE_ZERO, Rule, integer, number
from ..options.table import texts_in

NAME = "mlxgen.server"
KEY_VARIABLE = "MLXGEN_API_KEY"
_LONGEST_SOCKET = 103  # bytes of a path, as macOS limits them
LEVELS = ("debug", "info", "warning", "error")
EXAMPLES = """\
examples:
  mlxgen.server
  mlxgen.server --model mlx-community/Qwen3-4B-4bit --port 9000
  MLXGEN_API_KEY=secret mlxgen.server --model ./my-model --host 0.0.0.0

exit status: 0 stopped by a signal, 1 the engine failed, 2 it could not start
"""


def size(text: str) -> int:
    """A number of bytes, such as 1000000, 512MB or 2GiB."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kMGT]?)(i?)B?", text.strip(), re.IGNORECASE)
    if match is None:
        raise argparse.ArgumentTypeError(
            f"expected a size such as 1000000, 512MB or 2GiB, got {text!r}"
        )
    number, unit, binary = match.groups()
    power = "kmgt".index(unit.lower()) + 1 if unit else 0
    return int(float(number) * (1024 if binary else 1000) ** power)


def _as(default: Any, allowed: Rule | None = None, **how: Any) -> Any:
    """A setting: its default, its range if it has one, and how the command line takes it."""
    return field(default=default, metadata={"allowed": allowed, "how": how})


def _seconds(default: float) -> Any:
    return _as(default, number(0, 0, 1e7), type=float, metavar="S")


def _count(default: int | None, low: int, high: int) -> Any:
    return _as(default, integer(None, low, high), type=int, metavar="N")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a server is started with; each setting is an option of the command line."""

    model: str | None = _as(None, metavar="NAME")
    """A folder or a hub id (default: the bundled demo model)."""
    draft_model: str | None = _as(None, metavar="NAME")
    """A smaller model that proposes tokens, or ngram to find them in the text so far."""
    revision: str | None = _as(None, metavar="REVISION")
    """A branch, tag or commit of a hub id."""
    adapter: str | None = _as(None, metavar="FOLDER")
    """An adapter that mlx-lm trained for this model."""
    trust_remote_code: bool = _as(False, action="store_true")
    """Run Python code of the model."""
    ignore_memory_limit: bool = _as(False, action="store_true")
    """Load weights that may not fit in memory."""
    wired: bool = _as(True, action=argparse.BooleanOptionalAction)
    """On Apple silicon, keep what the model needs from being paged out."""
    sampling_defaults: SamplingChoice = _as("model", choices=CHOICES)  # noqa: RUF009 (a field)
    """Sampling that a request does not set: as the model's makers recommend, or openai if they
    recommend nothing (model); the most likely token each time (greedy); temperature 1 and top-p 1
    (openai)."""

    host: str = _as("127.0.0.1", metavar="HOST")
    """The address to listen on."""
    port: int = _as(8080, integer(None, 0, 65535), type=int, metavar="PORT")
    """The port to listen on; 0 picks a free one."""
    uds: str | None = _as(None, metavar="PATH")
    """A Unix socket to listen on, instead of host and port."""
    root_path: str = _as("", metavar="PREFIX")
    """What a proxy leaves in front of the paths."""
    api_key: str | None = _as(None, metavar="KEY")
    """The key that clients must send (or $MLXGEN_API_KEY)."""
    allow_hosts: tuple[str, ...] = _as((), action="append", metavar="NAME")
    """A name that clients may use for this server; repeatable. Without a key, all names need it but
    localhost and --host; addresses always work."""
    cors_origins: tuple[str, ...] = _as((), action="append", metavar="ORIGIN")
    """An origin whose pages may call this server; repeatable; * is any."""

    max_batch: int = _count(32, 1, 4096)
    """The most rows that run."""
    max_queue: int = _count(256, 1, 100_000)
    """The most rows that wait."""
    longest_gap: float | None = _as(None, number(0, ABOVE_ZERO, 1e6), type=float, metavar="S")
    """Seconds between two tokens of a row while the prompts of others are run (default: four times
    what a step takes, and 0.05 at least)."""
    prefill_chunk: int | None = _count(None, 1, 1 << 20)
    """Prompt tokens to run between two steps of the others, whatever they take."""
    max_context: int | None = _count(None, 2, 1 << 31)
    """Tokens of prompt and answer together (default: the model's)."""
    cache_bytes: int | None = _as(None, integer(None, 1 << 20, 1 << 50), type=size, metavar="SIZE")
    """Memory for KV caches, including the prefix cache (default: by the device)."""
    request_timeout: float = _seconds(600.0)
    """Seconds for a request, from its headers to its last byte; 0 is no limit."""
    stall_timeout: float = _seconds(300.0)
    """Seconds without a step, while there are rows, before /health/live is 503; 0 is never. It must
    be longer than any piece of a prompt takes."""
    shutdown_grace: float = _seconds(30.0)
    """Seconds for requests after a signal."""

    log_format: Literal["text", "json"] = _as("text", choices=("text", "json"))
    """The format."""
    log_level: str = _as("info", choices=LEVELS)
    """The least severe messages."""

    def __post_init__(self) -> None:
        for setting in fields(self):
            value, allowed = getattr(self, setting.name), setting.metadata["allowed"]
            if allowed is not None and value is not None:
                allowed.check(setting.name, value)
        if not self.host:
            raise OptionError("host", "is empty; pass an address such as 127.0.0.1")
        if self.api_key is not None and not re.fullmatch(r"[\x21-\x7e]+", self.api_key):
            raise OptionError("api_key", "expected one or more printable ASCII characters")
        if self.uds is not None and not 0 < len(os.fsencode(self.uds)) <= _LONGEST_SOCKET:
            raise OptionError(
                "uds", f"expected a path of 1 to {_LONGEST_SOCKET} bytes, got {self.uds!r}"
            )
        if self.root_path and not re.fullmatch(r"(/[A-Za-z0-9._~-]+)+/?", self.root_path):
            raise OptionError("root_path", f"expected a path such as /llm, got {self.root_path!r}")
        for name in self.allow_hosts:
            _check_name(name)
        for origin in self.cors_origins:
            _check_origin(origin)


_TEXTS = texts_in(__name__)
Settings.__doc__ = "\n".join(
    [f"{Settings.__doc__}\n", *(f"- {name}: {text}" for name, text in _TEXTS.items())]
)


def _check_name(name: str) -> None:
    if not re.fullmatch(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*", name):
        raise OptionError(
            "allow_host", f"expected a host name without port, such as box.local, got {name!r}"
        )


def _check_origin(origin: str) -> None:
    if origin in ("*", "null"):
        return
    try:
        parts = urlsplit(origin)
        whole = f"{parts.scheme}://{parts.netloc}" == origin and bool(parts.hostname)
    except ValueError:
        whole = False
    if not whole:
        raise OptionError(
            "cors_origin", f"expected an origin such as http://localhost:3000, or *, got {origin!r}"
        )


# ---- the command line ------------------------------------------------------------------------

_GROUPS = {  # by their first setting
    "model": "model",
    "host": "network",
    "max_batch": "limits",
    "log_format": "log, on standard error",
}
_REPEATED = {"allow_hosts": "allow_host", "cors_origins": "cors_origin"}


def make_parser() -> argparse.ArgumentParser:
    """The parser; every destination is the name of a setting."""
    parser = Parser(NAME, "Serve a language model to any client of OpenAI's API.", EXAMPLES)
    parser.argument_default = argparse.SUPPRESS
    parser.add_argument("--version", action="version", version=f"mlxgen {__version__}")
    add = parser.add_argument
    for setting in fields(Settings):
        name, default = setting.name, setting.default
        if name in _GROUPS:
            add = parser.add_argument_group(_GROUPS[name]).add_argument
        text = _TEXTS.get(name, "").removesuffix(".")
        if default and default is not True:
            shown = f"{default:g}" if isinstance(default, float) else default
            text += f" (default: {shown})"
        flag = _REPEATED.get(name, name).replace("_", "-")
        add(f"--{flag}", dest=name, help=text[:1].lower() + text[1:], **setting.metadata["how"])
    return parser


def read_settings(
    argv: Sequence[str] | None = None, environment: Mapping[str, str] = os.environ
) -> Settings:
    """The settings of a command line; exits with status 2 and one line if they are wrong."""
    parser = make_parser()
    given: dict[str, Any] = vars(parser.parse_args(argv))
    if "api_key" not in given and environment.get(KEY_VARIABLE):
        given["api_key"] = environment[KEY_VARIABLE]
    for several in _REPEATED:
        given[several] = tuple(given.get(several, ()))
    try:
        return Settings(**given)
    except OptionError as error:
        name = f"--{error.field.replace('_', '-')}"
        message = str(error).removeprefix(f"{error.field}: ")
        parser.error(f"{name}: {message}")
