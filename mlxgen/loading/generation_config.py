"""The sampling that a model's makers recommend, its end tokens, and the sampling defaults.

One rule for all chats of the library, the commands and the server: what ``generation_config.json``
recommends, or ``BALANCED`` if it recommends nothing. Raw text of the library and of ``--raw`` is
continued greedily.

Owns which values of the file have a meaning here, and what happens to invalid ones. Must never know
who asks for a generation. Invariant: reading the file never fails; malformed values and those out
of range are left out, and ``notice`` says so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, TypeAlias, cast

from ..errors import LoadError, OptionError
from ..options.table import OPTIONS, Recommended, checked, understood
from ..tokens import Token
from .checkpoint import read_json

NAME = "generation_config.json"

_SHOWN = 200  # characters of a message, as values in the file may have any length


def frozen_options(given: Recommended | Mapping[str, Any]) -> Recommended:
    """A checked, read-only copy of options; raises ``OptionError`` for an invalid one."""
    checked(cast(Mapping[str, Any], given))
    return cast(Recommended, MappingProxyType(dict(given)))


NOTHING = frozen_options({})
"""The recommendation of a model whose makers recommend nothing."""


SamplingChoice: TypeAlias = Literal["model", "greedy", "openai"]
CHOICES: tuple[SamplingChoice, ...] = ("model", "greedy", "openai")

BALANCED: Mapping[str, Any] = MappingProxyType({"temperature": 0.7, "top_p": 0.95, "min_p": 0.05})
GREEDY: Mapping[str, Any] = MappingProxyType({"temperature": 0.0})
OPENAI: Mapping[str, Any] = MappingProxyType({"temperature": 1.0, "top_p": 1.0})


def sampling_defaults(choice: SamplingChoice, recommended: Mapping[str, Any]) -> dict[str, Any]:
    """The default options for a choice; ``model`` is the rule of the module."""
    chosen = {"model": recommended or BALANCED, "greedy": GREEDY, "openai": OPENAI}
    return dict(chosen[choice])


def in_words(options: Mapping[str, Any]) -> str:
    """Sampling options for a line of the log."""
    return ", ".join(f"{name} {value:g}" for name, value in options.items())


class GenerationConfig(NamedTuple):
    """The contents of the file.

    - ``recommended``: sampling options of ``LanguageModel.stream``, read-only. Empty if the file
      does not mention sampling. Otherwise there is a temperature: 1 if the file has none, and 0 if
      it says ``do_sample: false``; then only the repetition penalty applies as well.
    - ``end_tokens``: the tokens that end a text, from this file or else from ``config.json``;
      ``None``: see the tokenizer.
    - ``notice``: one line that names what was ignored; ``None`` if nothing was.
    - ``is_readable``: whether mlx-lm can read the file; True if there is none.
    """

    recommended: Recommended
    end_tokens: tuple[Token, ...] | None
    notice: str | None
    is_readable: bool

    @classmethod
    def read(
        cls, folder: Path, *, vocab_size: int | None = None, end_tokens: Any = None
    ) -> GenerationConfig:
        """The file in a model's folder. ``end_tokens``: those of ``config.json``; all must be below
        ``vocab_size``."""
        path = folder / NAME
        notices: list[str] = []
        ends, wrong = _end_tokens(end_tokens, vocab_size)
        if wrong:
            notices.append(f"{folder / 'config.json'}: ignored {wrong[0]}")
        try:
            given, is_readable = (read_json(path) if path.exists() else {}), True
        except LoadError as error:
            notices.append(f"{_line(str(error))}; it is ignored")
            given, is_readable = {}, False
        options, ignored = _sampling(given)
        own, wrong = _end_tokens(given.get("eos_token_id"), vocab_size)
        if ignored + wrong:
            notices.append(f"{path}: ignored {'; '.join(ignored + wrong)}")
            is_readable = False
        return cls(frozen_options(options), own or ends, "; ".join(notices) or None, is_readable)


def _sampling(given: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The valid sampling options, and what is wrong with the others; ``null`` counts as missing."""
    options: dict[str, Any] = {}
    wrong: list[str] = []
    for name in Recommended.__annotations__:
        if given.get(name) is None:
            continue
        try:
            options[name] = OPTIONS[name].rule.check(name, understood(name, given[name]))
        except OptionError as error:
            wrong.append(_line(str(error)))
    samples = given.get("do_sample")
    if not isinstance(samples, bool | None):
        wrong.append(_line(f"do_sample: expected true or false, got {samples!r}"))
    elif samples is False:
        kept = ("repetition_penalty",)  # the others are of no use if nothing is sampled
        return {"temperature": 0.0} | {n: options[n] for n in kept if n in options}, wrong
    return ({"temperature": 1.0} | options if options or samples is True else {}), wrong


def _end_tokens(given: Any, vocab_size: int | None) -> tuple[tuple[Token, ...] | None, list[str]]:
    """The valid end tokens, ``None`` if there are none, and what is wrong with others."""
    values = given if isinstance(given, list) else [] if given is None else [given]
    most = math.inf if vocab_size is None else vocab_size - 1
    good: list[Any] = []
    bad: list[Any] = []
    for value in values:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        (good if number and value == value // 1 and 0 <= value <= most else bad).append(value)
    wrong = []
    if bad:
        more = f" and {len(bad) - 1} more" if len(bad) > 1 else ""
        below = "" if vocab_size is None else f" below {vocab_size}"
        wrong = [f"eos_token_id: expected token ids{below}, got {_line(repr(bad[0]))}{more}"]
    return tuple(dict.fromkeys(map(int, good))) or None, wrong


def _line(text: str) -> str:
    """One printable line of limited length, whatever the file holds."""
    line = "".join(c if c.isprintable() else " " for c in text)
    return line if len(line) <= _SHOWN else f"{line[:_SHOWN]}..."
