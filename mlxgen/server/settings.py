"""The server's settings, and the command line that they come from.

Owns names, defaults and ranges. Must never know how a setting is used. Invariant: a ``Settings``
is within its ranges; what depends on the model is checked when that is loaded.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

from ..arguments import ModelSettings, Parser, add_settings, setting, size, texts_of
from ..errors import OptionError
from ..loading.checkpoint import path_of
from ..options.rule import ABOVE_ZERO, DRAFTS, integer, number
from .clients import CLIENTS
from .clients import KEY_VARIABLE as KEY_VARIABLE

NAME = "mlxgen.server"
COMMON = (
    *("--model", "--model-dir", "--alias", "--adapter", "--draft", "--max-context", "--kv-bits"),
    *("--cache-dir", "--sampling-defaults", "--host", "--port", "--api-key", "--cors-origin"),
    *("--max-batch", "--thinking-budget", "--cache-bytes", "--log-level"),
)
ALIASES = {  # see arguments.ALIASES
    "-np": "--max-batch",
    "--parallel": "--max-batch",
    "--decode-concurrency": "--max-batch",
    "--prompt-cache-bytes": "--cache-bytes",
    "--served-model-name": "--alias",
    "--allowed-origins": "--cors-origin",
}
_TEXTS = (
    ("host", r".+", "an address such as 127.0.0.1"),
    ("uds", r".{1,103}", "a path of 1 to 103 bytes"),  # as macOS limits them
    ("root_path", r"((/[A-Za-z0-9._~-]+)+/?)?", "a path such as /llm"),
    ("aliases", r"[^=\x00-\x1f\x7f]{1,256}(=.*)?", "a name of 1 to 256 characters"),
    (
        "allow_hosts",
        r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*",
        "a host name without port, such as box.local",
    ),
    (
        "cors_origins",
        r"\*|null|[A-Za-z][\w+.-]*://(\[[0-9A-Fa-f:.]+\]|[^\s/?#@:\[\]]+)(:[0-9]*)?",
        "an origin such as http://localhost:3000, or *",
    ),
)
"""Settings that are texts: the pattern of each, and its description in errors."""
LEVELS = ("debug", "info", "warning", "error")
EXAMPLES = """\
examples:
  mlxgen.server
  mlxgen.server --model mlx-community/Qwen3-4B-4bit --port 9000
  mlxgen.server --model ./my-model --model-dir ~/models --idle-unload 600
  MLXGEN_API_KEY=secret mlxgen.server --model ./my-model --host 0.0.0.0
  mlxgen.server --model mlx-community/Qwen3-4B-4bit --print-config codex

exit status: 0 stopped by a signal, 1 the engine or a machine failed, 2 it could not start
"""


def _seconds(default: float) -> Any:
    return setting(default, number(0, 0, 1e7), type=float, metavar="S")


def _count(default: int | None, low: int, high: int) -> Any:
    return setting(default, integer(None, low, high), type=int, metavar="N")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings(ModelSettings):
    """What a server is started with; each setting is an option of the command line."""

    models: tuple[str, ...] = setting((), action="append", metavar="NAME")
    """A folder or a hub id; repeatable. The first is the default and loaded at the start, the
    others when requests name them (default: the bundled demo model)."""
    model_dirs: tuple[str, ...] = setting((), action="append", metavar="FOLDER")
    """A folder whose sub-folders (NAME or OWNER/NAME) are models, loaded when requests name them;
    repeatable."""
    adapters: tuple[str, ...] = setting((), action="append", metavar="[BASE:]NAME=FOLDER")
    """An adapter that mlx-lm trained for BASE, by default the default model; requests name it as
    BASE:NAME, and it shares the weights. Without NAME=, it becomes a part of the only model;
    repeatable."""
    idle_unload: float = _seconds(0.0)
    """Seconds without a request after which a model is unloaded; 0 is never."""
    aliases: tuple[str, ...] = setting((), action="append", metavar="NAME[=MODEL]")
    """A further name of the default model, or of another one, for clients that choose from
    /v1/models; repeatable."""
    strict_model: bool = setting(False, action="store_true")
    """Refuse requests for a model of another name; otherwise the default model answers them, and
    the answer repeats the name."""
    strict_fields: bool = setting(False, action="store_true")
    """Refuse requests with a field that is not known; otherwise it is ignored, and named in the
    header x-mlxgen-ignored and once in the log."""

    host: str = setting("127.0.0.1", metavar="HOST")
    """The address to listen on."""
    port: int = setting(8080, integer(None, 0, 65535), type=int, metavar="PORT")
    """The port to listen on; 0 picks a free one."""
    uds: str | None = setting(None, metavar="PATH")
    """A Unix socket to listen on, instead of host and port."""
    root_path: str = setting("", metavar="PREFIX")
    """A prefix that a proxy leaves before the paths, such as /llm."""
    api_keys: tuple[str, ...] = setting((), action="append", metavar="KEY")
    """A key that lets clients in; repeatable (or $MLXGEN_API_KEY, with spaces between several).
    What was read and written with one is never proposed as a draft with another."""
    allow_hosts: tuple[str, ...] = setting((), action="append", metavar="NAME")
    """A name that clients may use for this server; repeatable. Without a key, all names need it but
    localhost and --host; addresses always work."""
    cors_origins: tuple[str, ...] = setting((), action="append", metavar="ORIGIN")
    """An origin whose pages may call this server; repeatable; * is any."""
    print_config: str | None = setting(None, choices=CLIENTS)
    """Print what a client of a server with these options has to be told, and exit; the model is not
    loaded."""

    allow_remote_images: bool = setting(False, action="store_true")
    """Fetch images that requests name by http or https addresses, from the public internet only."""

    max_batch: int = _count(32, 1, 4096)
    """Maximum number of sequences that run at a time."""
    max_queue: int = _count(256, 1, 100_000)
    """Maximum number of sequences that wait."""
    longest_gap: float | None = setting(None, number(0, ABOVE_ZERO, 1e6), type=float, metavar="S")
    """Seconds between two tokens of a sequence while the prompts of others are run (default: three
    times what a step takes, and at least 0.05)."""
    thinking_budget: int | None = _count(None, 0, 1 << 31)
    """Maximum number of tokens to think before an answer in a chat, if a request does not say;
    a request's effort means no more than this (default: no limit)."""
    cache_bytes: int | None = setting(
        None, integer(None, 1 << 20, 1 << 50), type=size, metavar="SIZE"
    )
    """Memory for all KV caches, prefixes included (default: half of what weights and a reserve
    leave)."""
    queue_timeout: float = _seconds(600.0)
    """Seconds that a request may wait until its prompt is run; 0 is no limit."""
    request_timeout: float = _seconds(0.0)
    """Seconds for its answer, from the first token to the last byte; 0, the default, is no
    limit."""
    shutdown_grace: float = _seconds(30.0)
    """Seconds for running requests after SIGTERM, SIGHUP or Ctrl-C."""

    programs: tuple[str, ...] = setting((), action="append", metavar="NAME=PLACE")
    """A program of your own that requests may name: an async function of a guide, such as
    quiz=package.module:quiz; repeatable."""
    controllers: tuple[str, ...] = setting((), action="append", metavar="NAME=PLACE")
    """A controller of your own, likewise: a class with mid_process; repeatable."""
    hooks: tuple[str, ...] = setting((), action="append", metavar="NAME=PLACE")
    """A hook of your own, likewise: a function of a sampled token, or a class whose objects are
    such functions; repeatable."""
    checks: tuple[str, ...] = setting((), action="append", metavar="NAME=PLACE")
    """A check of your own of each line of a text, likewise: a function of the line and the text
    before it, or a mlxgen.Checked. Or NAME=COMMAND, which reads a whole text; repeatable."""

    log_format: Literal["text", "json"] = setting("text", choices=("text", "json"))
    """The format of log lines."""
    log_level: str = setting("info", choices=LEVELS)
    """The least severe messages that are logged."""

    def __post_init__(self) -> None:
        for each in fields(self):
            value, allowed = getattr(self, each.name), each.metadata["allowed"]
            if allowed is not None and value is not None:
                allowed.check(each.name, value)
        for key in self.api_keys:
            if not re.fullmatch(r"[\x21-\x7e]+", key):
                raise OptionError("api_key", "expected one or more printable ASCII characters")
        for name, pattern, wanted in _TEXTS:
            value = getattr(self, name)
            for given in [value] if isinstance(value, str) else value or ():
                if re.fullmatch(pattern, given, re.DOTALL) is None:
                    option = _REPEATED.get(name, name)
                    raise OptionError(option, f"expected {wanted}, got {given[:80]!r}")
        if self.has_several:
            self._check_for_several()
        if self.own_adapter is not None and len(self.adapters) > 1:
            raise OptionError(
                "adapter",
                f"a model with an adapter of its own takes no others: give {self.own_adapter} a "
                "name, too (NAME=FOLDER)",
            )
        if self.print_config is not None and (self.uds is not None or self.port == 0):
            raise OptionError(
                "print_config",
                "a client needs the address: leave out --uds, and pass a port other than 0",
            )

    @property
    def has_several(self) -> bool:
        """Whether there is, or may be, more than one model."""
        return len(self.models) > 1 or bool(self.model_dirs)

    @property
    def loads_at_once(self) -> bool:
        """Whether the default model is loaded at the start, before any request."""
        return bool(self.models) or not self.has_several

    @property
    def own_adapter(self) -> str | None:
        """The adapter that becomes a part of the only model."""
        return next((given for given in self.adapters if not is_named(given)), None)

    def _check_for_several(self) -> None:
        """Raise ``OptionError`` for settings that only make sense for one model."""
        draft = None if self.draft in DRAFTS else self.draft
        given = {"revision": self.revision, "adapter": self.own_adapter, "draft": draft}
        for name, value in given.items():
            if value is not None:
                raise OptionError(name, "belongs to one model, but there are several; leave it out")


Settings.__doc__ = "\n".join(
    [f"{Settings.__doc__}\n", *(f"- {name}: {text}" for name, text in texts_of(Settings).items())]
)


def is_named(adapter: str) -> bool:
    """Whether an adapter is given with a name: ``NAME=FOLDER``."""
    return "=" in adapter and not path_of(adapter).exists()


# ---- the command line ------------------------------------------------------------------------

_GROUPS = {  # by their first setting
    "models": "model",
    "host": "network",
    "max_batch": "limits",
    "programs": "your own code",
    "log_format": "log, on standard error",
}
_REPEATED = {
    "models": "model",
    "model_dirs": "model_dir",
    "adapters": "adapter",
    "aliases": "alias",
    "api_keys": "api_key",
    "allow_hosts": "allow_host",
    "cors_origins": "cors_origin",
    "programs": "program",
    "controllers": "controller",
    "hooks": "hook",
    "checks": "check",
}


def make_parser() -> argparse.ArgumentParser:
    """The parser; every destination is the name of a setting."""
    parser = Parser(
        NAME,
        "Serve a language model to any client of OpenAI's API.",
        EXAMPLES,
        usage="[OPTIONS]",
        common=COMMON,
        aliases=ALIASES,
    )
    parser.argument_default = argparse.SUPPRESS
    add_settings(parser, Settings, _GROUPS, _REPEATED)
    return parser


def read_settings(
    argv: Sequence[str] | None = None, environment: Mapping[str, str] = os.environ
) -> Settings:
    """The settings of a command line; exits with status 2 and one line if they are wrong."""
    parser = make_parser()
    given: dict[str, Any] = vars(parser.parse_args(argv))
    given.setdefault("api_keys", environment.get(KEY_VARIABLE, "").split())
    for several in _REPEATED:
        given[several] = tuple(given.get(several, ()))
    try:
        return Settings(**given)
    except OptionError as error:
        parser.error(explained(error))


def explained(error: OptionError) -> str:
    """The message for an option of the command line."""
    return f"--{error.field.replace('_', '-')}{str(error).removeprefix(error.field)}"
