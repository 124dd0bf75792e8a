"""The parser that both commands share, and the options of the model that they load."""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from decimal import Decimal
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn

from . import __version__
from .loading.generation_config import CHOICES, SamplingChoice
from .options.rule import Rule, integer
from .options.table import KV_BITS, KV_GROUP_SIZE, KV_QUANT_START, texts_in

if TYPE_CHECKING:
    from .language_model import LanguageModel

ALIASES = {  # earlier names, and those of mlx-lm, llama.cpp and vLLM; the help does not list them
    "-m": "--model",
    "--adapter-path": "--adapter",
    "--draft-model": "--draft",
    "-md": "--draft",
    "--model-draft": "--draft",
    "-c": "--max-context",
    "--ctx-size": "--max-context",
    "--max-kv-size": "--max-context",
    "--max-model-len": "--max-context",
    "--reasoning-budget": "--thinking-budget",
}
_SHORT = 23  # characters of a default that the short help shows
_ALIKE = 0.75  # difflib's ratio from which on a name is suggested; the dashes count
_UNKNOWN = "unrecognized arguments: "


def size(text: str) -> int:
    """A number of bytes, such as 1000000, 512MB or 2GiB."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kMGT]?)(i?)B?", text.strip(), re.IGNORECASE)
    if match is None:
        raise argparse.ArgumentTypeError(
            f"expected a size such as 1000000, 512MB or 2GiB, got {text!r}"
        )
    number, unit, binary = match.groups()
    power = "kmgt".index(unit.lower()) + 1 if unit else 0
    return int(Decimal(number) * (1024 if binary else 1000) ** power)


def setting(default: Any, allowed: Rule | None = None, **how: Any) -> Any:
    """A field that is an option: its default, its range, and how the command line takes it."""
    return field(default=default, metadata={"allowed": allowed, "how": how})


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSettings:
    """How a command loads a model."""

    revision: str | None = setting(None)
    """A branch, tag or commit of a hub id."""
    draft: str = setting("auto", metavar="NAME")
    """A smaller model that drafts tokens, or ngram, off or auto; the model needs the same
    tokenizer, ngram drafts from text that was read or written before, and auto chooses."""
    max_context: int | None = setting(None, integer(None, 2, 1 << 31), type=int, metavar="N")
    """Maximum number of tokens of prompt and answer together (default: the model's)."""
    trust_remote_code: bool = setting(False, action="store_true")
    """Run Python code that comes with the model."""
    ignore_memory_limit: bool = setting(False, action="store_true")
    """Load weights even if they may not fit in memory."""
    wired: bool = setting(True, action=argparse.BooleanOptionalAction)
    """On Apple silicon, keep what the model needs from being paged out (default: on)."""
    kv_bits: int | None = setting(None, KV_BITS, type=int, metavar="N")
    """Quantise the KV cache to 8 or 4 bits, or 2, 3, 5 or 6 (default: not quantised)."""
    cache_dir: str | None = setting(None, metavar="FOLDER")
    """A folder that keeps the KV of prompts for later runs; processes and models may share it."""
    cache_dir_bytes: int | None = setting(None, type=size, metavar="SIZE")
    """Maximum size of that folder (default: a tenth of the free space there, at most 32 GiB)."""
    sampling_defaults: SamplingChoice = setting("model", choices=CHOICES)  # noqa: RUF009 (a field)
    """Sampling when an option is not set: as the model's makers recommend, else temperature 0.7,
    top-p 0.95 and min-p 0.05 (model); the most likely token (greedy); temperature 1 and top-p 1
    (openai)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OneModel(ModelSettings):
    """Which model a command loads, and how."""

    model: str | None = setting(None, metavar="NAME")
    """A folder or a hub id (default: the bundled demo model)."""
    adapter: str | None = setting(None, metavar="FOLDER")
    """An adapter that mlx-lm trained for this model."""
    kv_group_size: int | None = setting(None, KV_GROUP_SIZE, type=int, metavar="N")
    """Group size of KV quantisation: 32, 64 or 128 (default: 64 if it divides the model's head
    dimension, else 32)."""
    kv_quant_start: int = setting(0, KV_QUANT_START, type=int, metavar="N")
    """Number of tokens at the start of each sequence whose KV is not quantised."""


def load_model(
    name: str | None,
    settings: ModelSettings | argparse.Namespace,
    *,
    adapter: str | None,
    cache_bytes: int | None = None,
    max_context: int | None = None,
    kv_group_size: int | None = None,
    kv_quant_start: int = 0,
) -> LanguageModel:
    """Load a model as the options of a command say."""
    from .load import load

    return load(
        name,
        adapter=adapter,
        revision=settings.revision,
        draft=settings.draft,
        ignore_memory_limit=settings.ignore_memory_limit,
        cache_bytes=cache_bytes,
        cache_dir=settings.cache_dir,
        cache_dir_bytes=settings.cache_dir_bytes,
        wired_limit="auto" if settings.wired else None,
        trust_remote_code=settings.trust_remote_code,
        max_context=max_context,
        kv_bits=settings.kv_bits,
        kv_group_size=kv_group_size,
        kv_quant_start=kv_quant_start,
    )


def add_settings(
    parser: Parser,
    settings: type,
    groups: Mapping[str, str],
    names: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Add an option for each field that ``setting`` made.

    ``groups`` has the title of each group by its first field; the first of all comes before any
    other option. ``names`` has the options that are not called like their fields.
    """
    texts, add, first = texts_of(settings), parser.add_argument, next(iter(groups))
    for each in sorted(fields(settings), key=lambda one: one.name != first):
        if each.name in groups:
            add = parser.add_argument_group(groups[each.name]).add_argument
        text, default = texts.get(each.name, "").removesuffix("."), each.default
        if default and default is not True:
            text += f" (default: {f'{default:g}' if isinstance(default, float) else default})"
        flag = names.get(each.name, each.name).replace("_", "-")
        how = {"help": text[:1].lower() + text[1:], **each.metadata["how"]}
        add(f"--{flag}", dest=each.name, **how)


def texts_of(settings: type) -> dict[str, str]:
    """The text under each field of a class of settings, inherited ones first."""
    return {**texts_in(__name__), **texts_in(settings.__module__)}


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line on standard error, with a "did you mean".

    ``--help`` lists the options in ``common``, one sentence each, and ``--help-all`` all of them.
    ``aliases`` are other names of options, which are listed nowhere.
    """

    def __init__(
        self,
        prog: str,
        description: str,
        epilog: str,
        *,
        usage: str,
        common: Collection[str],
        aliases: Mapping[str, str],
    ) -> None:
        super().__init__(
            prog=prog,
            usage=f"{prog} {usage}",
            description=description,
            epilog=epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
            add_help=False,
        )
        self._common = {"-h", "--help-all", *common}
        self._aliases = {**ALIASES, **aliases}
        add = partial(self.add_argument, nargs=0, default=argparse.SUPPRESS)
        add("-h", "--help", action=_Help, help="list the common options and exit")
        add("--help-all", action=_Help, help="list all options and exit")
        add("--version", action=_Version, help="print the versions and exit")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """See ``argparse``; aliases are replaced by the names that they stand for."""
        return super().parse_known_args(
            self._spelled(sys.argv[1:] if args is None else args), namespace
        )

    def error(self, message: str) -> NoReturn:
        """Print what is wrong and exit with status 2."""
        if message.startswith(_UNKNOWN):
            message += self._meant(message.removeprefix(_UNKNOWN).split())
        self.exit(2, f"{self.prog}: error: {message} (--help-all lists the options)\n")

    def shorten(self) -> None:
        """Leave uncommon options out of the help."""
        for action in self._actions:
            if action.option_strings and self._common.isdisjoint(action.option_strings):
                action.help = argparse.SUPPRESS
            elif action.help:
                action.help = _short(action.help)

    def _spelled(self, words: Iterable[str]) -> Iterator[str]:
        left = iter(words)
        for word in left:
            name, equals, value = word.partition("=")
            yield self._aliases.get(name, name) + equals + value
            if word == "--":
                yield from left

    def _meant(self, unknown: list[str]) -> str:
        options = [word.partition("=")[0] for word in unknown if word.startswith("--")]
        known = {name: name for name in self._option_string_actions} | self._aliases
        near = [difflib.get_close_matches(word, known, 1, _ALIKE) for word in options]
        meant = dict.fromkeys(known[match] for found in near for match in found)
        return f"; did you mean {' and '.join(meant)}?" if meant else ""


def _short(text: str) -> str:
    """The first clause of a help text, with its default if that is short."""
    told, _, default = text.partition(" (default: ")
    clause = re.split(r"[.;:] ", told)[0]
    return f"{clause} (default: {default}" if 0 < len(default) <= _SHORT else clause


class _Help(argparse.Action):
    def __call__(self, parser: Any, namespace: Any, values: Any, option: str | None = None) -> None:
        if option != "--help-all":
            parser.shorten()
        parser.print_help()
        parser.exit()


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from importlib.metadata import version

        print(f"mlxgen {__version__}, mlx {version('mlx')}, mlx-lm {version('mlx-lm')}")
        parser.exit()
