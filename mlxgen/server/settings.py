"""The server's settings, and the command line that they come from.

Owns names, defaults and ranges. Must never know how a setting is used. Invariant: a ``Settings``
is within its ranges; what depends on the model is checked when that is loaded.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlsplit

from .. import __version__
from ..arguments import Parser
from ..errors import OptionError
from ..loading.sampling_defaults import CHOICES, SamplingChoice
from ..options.rule import integer, number

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a server is started with.

    - ``model``, ``revision``, ``adapter``, ``trust_remote_code``, ``ignore_memory_limit``: as in
      ``mlxgen.load``, and ``draft_model`` is its ``draft``. ``wired``: keep memory wired up to
      what the device recommends.
    - ``host``, ``port``: where to listen; port 0 picks a free one.
    - ``uds``: the path of a Unix socket to listen on instead. ``root_path``: a prefix that a proxy
      leaves in front of the paths.
    - ``api_key``: the key that clients must send; ``None``: none.
    - ``max_batch``, ``max_queue``: the most rows that run, and that wait.
    - ``max_context``: tokens of prompt and answer together; ``None``: as the model has it.
    - ``sampling_defaults``: the sampling of requests that do not set it: as the model's makers
      recommend (or OpenAI's, if they recommend nothing), greedy, or OpenAI's.
    - ``cache_bytes``: memory for KV caches, including the prefix cache; ``None``: depends on the
      device.
    - ``request_timeout``: seconds for one request, from its headers to its last byte; 0: no limit.
    - ``stall_timeout``: seconds without a step of the engine, while it has rows, after which
      ``/health/live`` fails; 0: never. It must be longer than any piece of a prompt takes.
    - ``allow_hosts``: names that clients may use for the server, besides addresses and those of
      the loopback; with a key and no names, any.
    - ``cors_origins``: origins whose pages may call the server; ``"*"`` is any.
    - ``shutdown_grace``: seconds for running requests after SIGTERM or SIGINT.
    """

    model: str | None = None
    draft_model: str | None = None
    revision: str | None = None
    adapter: str | None = None
    trust_remote_code: bool = False
    ignore_memory_limit: bool = False
    wired: bool = False
    host: str = "127.0.0.1"
    port: int = 8080
    uds: str | None = None
    root_path: str = ""
    api_key: str | None = None
    max_batch: int = 32
    max_queue: int = 256
    max_context: int | None = None
    sampling_defaults: SamplingChoice = "model"
    cache_bytes: int | None = None
    request_timeout: float = 600.0
    stall_timeout: float = 300.0
    allow_hosts: tuple[str, ...] = ()
    cors_origins: tuple[str, ...] = ()
    log_format: Literal["text", "json"] = "text"
    log_level: str = "info"
    shutdown_grace: float = 30.0

    def __post_init__(self) -> None:
        for name, allowed in _RANGES.items():
            if getattr(self, name) is not None:
                allowed.check(name, getattr(self, name))
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


_SECONDS = number(0, 0, 1e7)
_RANGES = {
    "port": integer(None, 0, 65535),
    "max_batch": integer(None, 1, 4096),
    "max_queue": integer(None, 1, 100_000),
    "max_context": integer(None, 2, 1 << 31),
    "cache_bytes": integer(None, 1 << 20, 1 << 50),
    "request_timeout": _SECONDS,
    "stall_timeout": _SECONDS,
    "shutdown_grace": _SECONDS,
}


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


def make_parser() -> argparse.ArgumentParser:
    """The parser; every destination is the name of a setting."""
    default = Settings()
    parser = Parser(
        prog=NAME,
        description="Serve a language model to any client of OpenAI's API.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
    )
    parser.add_argument("--version", action="version", version=f"mlxgen {__version__}")

    add = parser.add_argument_group("model").add_argument
    add("--model", metavar="NAME", help="a folder or a hub id (default: the bundled demo model)")
    add(
        "--draft-model",
        metavar="NAME",
        help="a smaller model that proposes tokens, or ngram to find them in the text so far",
    )
    add("--revision", help="a branch, tag or commit of a hub id")
    add("--adapter", metavar="FOLDER", help="an adapter that mlx-lm trained for this model")
    add("--trust-remote-code", action="store_true", help="run Python code of the model")
    add(
        "--ignore-memory-limit", action="store_true", help="load weights that may not fit in memory"
    )
    add("--wired", action="store_true", help="keep memory wired, up to what the device recommends")

    add(
        "--sampling-defaults",
        choices=CHOICES,
        help="sampling that a request does not set: as the model's makers recommend, or openai if "
        "they recommend nothing (model); the most likely token each time (greedy); temperature 1 "
        "and top-p 1 (openai)",
    )

    add = parser.add_argument_group("network").add_argument
    add("--host", help="the address to listen on")
    add("--port", type=int, help="the port to listen on; 0 picks a free one")
    add("--uds", metavar="PATH", help="a Unix socket to listen on, instead of host and port")
    add("--root-path", metavar="PREFIX", help="what a proxy leaves in front of the paths")
    add("--api-key", metavar="KEY", help=f"the key that clients must send (or ${KEY_VARIABLE})")
    add(
        "--allow-host",
        dest="allow_hosts",
        action="append",
        metavar="NAME",
        help="a name that clients may use for this server; repeatable. Without a key, all names "
        "need it but localhost and --host; addresses always work",
    )
    add(
        "--cors-origin",
        dest="cors_origins",
        action="append",
        metavar="ORIGIN",
        help="an origin whose pages may call this server; repeatable; * is any",
    )

    add = parser.add_argument_group("limits").add_argument
    add("--max-batch", type=int, metavar="N", help="the most rows that run")
    add("--max-queue", type=int, metavar="N", help="the most rows that wait")
    add(
        "--max-context",
        type=int,
        metavar="N",
        help="tokens of prompt and answer (default: the model's)",
    )
    add(
        "--cache-bytes",
        type=size,
        metavar="SIZE",
        help="memory for KV caches (default: by the device)",
    )
    add("--request-timeout", type=float, metavar="S", help="seconds for a request; 0 is no limit")
    add(
        "--stall-timeout",
        type=float,
        metavar="S",
        help="seconds without a step before /health/live is 503; 0 is never",
    )
    add("--shutdown-grace", type=float, metavar="S", help="seconds for requests after a signal")

    add = parser.add_argument_group("log, on standard error").add_argument
    add("--log-format", choices=("text", "json"), help="the format")
    add("--log-level", choices=LEVELS, help="the least severe messages")
    for action in parser._actions:
        value = getattr(default, action.dest, None)
        if value and not isinstance(value, bool):
            shown = f"{value:g}" if isinstance(value, float) else value
            action.help = f"{action.help} (default: {shown})"
    return parser


def read_settings(
    argv: Sequence[str] | None = None, environment: Mapping[str, str] = os.environ
) -> Settings:
    """The settings of a command line; exits with status 2 and one line if they are wrong."""
    parser = make_parser()
    given: dict[str, Any] = vars(parser.parse_args(argv))
    if "api_key" not in given and environment.get(KEY_VARIABLE):
        given["api_key"] = environment[KEY_VARIABLE]
    for several in ("allow_hosts", "cors_origins"):
        given[several] = tuple(given.get(several, ()))
    try:
        return Settings(**given)
    except OptionError as error:
        name = f"--{error.field.replace('_', '-')}"
        message = str(error).removeprefix(f"{error.field}: ")
        parser.error(f"{name}: {message}")
