"""What both commands share: their parser, and the options of the model that they load."""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, NoReturn

from . import __version__
from .loading.sampling_defaults import CHOICES, SamplingChoice
from .options.kv import KV_BITS, KV_GROUP_SIZE, KV_QUANT_START
from .options.rule import Rule
from .options.table import texts_in

if TYPE_CHECKING:
    from .model import LanguageModel

_ALIKE = 0.75  # of difflib's ratio; the dashes count
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
    return int(float(number) * (1024 if binary else 1000) ** power)


def setting(default: Any, allowed: Rule | None = None, **how: Any) -> Any:
    """A field that is an option: its default, its range, and how the command line takes it."""
    return field(default=default, metadata={"allowed": allowed, "how": how})


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSettings:
    """How a command loads a model."""

    revision: str | None = setting(None)
    """A branch, tag or commit of a hub id."""
    draft_model: str = setting("auto", metavar="NAME")
    """What proposes tokens: a smaller model beside what needs none, auto for what needs none, ngram
    for earlier text alone, or off."""
    trust_remote_code: bool = setting(False, action="store_true")
    """Run Python code that comes with the model."""
    ignore_memory_limit: bool = setting(False, action="store_true")
    """Load weights even if they may not fit in memory."""
    wired: bool = setting(True, action=argparse.BooleanOptionalAction)
    """On Apple silicon, keep what the model needs from being paged out (default: on)."""
    kv_bits: int | None = setting(None, KV_BITS, type=int, metavar="N")
    """Hold the KV cache in so many bits a number: 8 or 4, also 2, 3, 5 or 6 (default: as the model
    computes)."""
    kv_group_size: int | None = setting(None, KV_GROUP_SIZE, type=int, metavar="N")
    """So many numbers share a scale: 32, 64 or 128 (default: 64 if the model's head dimension is a
    multiple of that, else 32)."""
    kv_quant_start: int = setting(0, KV_QUANT_START, type=int, metavar="N")
    """The first tokens of every sequence that --kv-bits leaves as they are."""
    cache_dir: str | None = setting(None, metavar="FOLDER")
    """A folder to keep prefixes in, so that they survive a restart; processes and models may share
    it."""
    cache_dir_bytes: int | None = setting(None, type=size, metavar="SIZE")
    """What all files in that folder may use (default: a tenth of what is free there, at most
    32 GiB)."""
    sampling_defaults: SamplingChoice = setting("model", choices=CHOICES)  # noqa: RUF009 (a field)
    """Sampling options that are not set: as the model's makers recommend, or temperature 0.7, top-p
    0.95 and min-p 0.05 if they recommend nothing (model); the most likely token each time (greedy);
    temperature 1 and top-p 1 (openai)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OneModel(ModelSettings):
    """Which model a command loads, and how."""

    model: str | None = setting(None, metavar="NAME")
    """A folder or a hub id (default: the bundled demo model)."""
    adapter: str | None = setting(None, metavar="FOLDER")
    """An adapter that mlx-lm trained for this model."""


def load_model(
    name: str | None,
    settings: ModelSettings | argparse.Namespace,
    *,
    adapter: str | None,
    cache_bytes: int | None = None,
) -> LanguageModel:
    """Load a model as the options of a command say."""
    from .load import load

    return load(
        name,
        adapter=adapter,
        revision=settings.revision,
        draft=settings.draft_model,
        ignore_memory_limit=settings.ignore_memory_limit,
        cache_bytes=cache_bytes,
        cache_dir=settings.cache_dir,
        cache_dir_bytes=settings.cache_dir_bytes,
        wired_limit="auto" if settings.wired else None,
        trust_remote_code=settings.trust_remote_code,
        kv_bits=settings.kv_bits,
        kv_group_size=settings.kv_group_size,
        kv_quant_start=settings.kv_quant_start,
    )


def add_settings(
    parser: Parser, settings: type, groups: Mapping[str, str], names: Mapping[str, str]
) -> None:
    """Add an option for each field that ``setting`` made.

    ``groups`` are named by their first fields, the first of which comes before all others, and
    ``names`` has the options that differ from them.
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
    """A parser whose errors are one line on standard error, with a "did you mean"."""

    def __init__(self, prog: str, description: str, epilog: str) -> None:
        super().__init__(
            prog=prog,
            description=description,
            epilog=epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        self.add_argument(
            "--version",
            action=_Version,
            nargs=0,
            default=argparse.SUPPRESS,
            help="print the versions and exit",
        )

    def error(self, message: str) -> NoReturn:
        """Print what is wrong and exit with status 2."""
        if message.startswith(_UNKNOWN):
            message += self._meant(message.removeprefix(_UNKNOWN).split())
        self.exit(2, f"{self.prog}: error: {message} (--help lists the options)\n")

    def _meant(self, unknown: list[str]) -> str:
        options = [word.partition("=")[0] for word in unknown if word.startswith("--")]
        known = self._option_string_actions
        near = [difflib.get_close_matches(word, known, 1, _ALIKE) for word in options]
        meant = dict.fromkeys(match for found in near for match in found)
        return f"; did you mean {' and '.join(meant)}?" if meant else ""


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from importlib.metadata import version

        print(f"mlxgen {__version__}, mlx {version('mlx')}, mlx-lm {version('mlx-lm')}")
        parser.exit()
