"""The models that requests may name.

Owns their names, and which one a request means. Must never know whether one is loaded. Invariant:
frozen; no two models have a name in common.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from ..errors import LoadError, OptionError
from ..load import folder_of
from ..loading.checkpoint import check_adapter, path_of, read_json
from ..loading.model_config import max_context_of
from .errors import RequestError
from .fields import shown
from .settings import Settings, is_named

DEMO = "demo"
_ADAPTER_NAME = re.compile(r"[\w.-]{1,100}")
_DEEPEST = 2  # levels of a folder of models: a name, or an owner and a name


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A model that may be loaded.

    - ``name`` and ``aliases``: what ``/v1/models`` lists; answers have the ``name``.
    - ``source``: what ``mlxgen.load`` takes, as given in the settings, and also a name of the
      model; ``None``: the demo model, or a model with an adapter.
    - ``folder``: the folder of its files, if known before it is loaded.
    - ``base``, ``adapter``: for a model with an adapter, the base model's name and the adapter's
      folder; its own name is ``base:NAME``.
    """

    name: str
    source: str | None = None
    aliases: tuple[str, ...] = ()
    folder: Path | None = None
    base: str | None = None
    adapter: Path | None = None

    @property
    def listed(self) -> tuple[str, ...]:
        """All names that ``/v1/models`` lists, its own first."""
        return (self.name, *self.aliases)

    @property
    def names(self) -> tuple[str, ...]:
        """All names that requests may use."""
        return self.listed if self.source is None else (*self.listed, self.source)

    @property
    def max_context(self) -> int | None:
        """The most tokens that the model's configuration allows, if that can be read."""
        try:
            config = {} if self.folder is None else read_json(self.folder / "config.json")
        except LoadError:
            return None
        return max_context_of(config)


@dataclass(frozen=True)
class Catalogue:
    """All models, the default one first. ``strict``: requests for any other name are refused."""

    entries: tuple[Entry, ...]
    strict: bool = False

    @classmethod
    def of(cls, settings: Settings) -> Catalogue:
        """The models of the settings; raises ``OptionError`` for one that cannot be used.

        The files of a single model are checked only when it is loaded.
        """
        entries: list[Entry] = []
        for source in settings.models if settings.has_several else ():
            _add(entries, _checked(source), "model")
        for folder in settings.model_dirs:
            for entry in _models_in(folder):
                _add(entries, entry, "model_dir")
        if not settings.has_several:
            entries = [_only(next(iter(settings.models), None))]
        for given in filter(is_named, settings.adapters):
            entries.append(_with_adapter(entries, given))
        return cls(_with_aliases(entries, settings.aliases), settings.strict_model)

    @property
    def default(self) -> Entry:
        """The model for requests that name none."""
        return self.entries[0]

    @cached_property
    def _by_name(self) -> dict[str, Entry]:
        own = {name: entry for entry in self.entries for name in entry.names}
        derived = {  # adapters, by the other names of their bases
            name + entry.name.removeprefix(entry.base): entry
            for entry in self.entries
            if entry.base is not None
            for name in own[entry.base].names
        }
        return derived | own

    def named(self, name: str) -> Entry:
        """The model of this name; raises ``RequestError`` (404) if there is none."""
        found = self._by_name.get(name)
        if found is not None:
            return found
        *others, last = [repr(known) for entry in self.entries for known in entry.listed]
        known = f"{', '.join(others)} and {last}" if others else last
        raise RequestError(
            f"model: there is no model {shown(name)} here, only {known}",
            status=404,
            param="model",
            code="model_not_found",
        )

    def meant(self, name: object) -> Entry:
        """The model that a request means. An unknown name means the default model, but raises
        ``RequestError`` if names are strict or if it looks like an adapter's."""
        if not isinstance(name, str) or not name:
            return self.entries[0]
        base = self._by_name.get(name.rpartition(":")[0])
        if self.strict or (base is not None and any(e.base == base.name for e in self.entries)):
            return self.named(name)
        return self._by_name.get(name, self.default)


def _only(source: str | None) -> Entry:
    """The entry of a single model, whether or not its files exist."""
    if source is None:
        return Entry(name=DEMO)
    try:
        path = Path(source).expanduser()
        name = path.resolve().name if path.exists() else source
    except (OSError, RuntimeError):
        name = source
    return Entry(name=name or source, source=source)


def _checked(source: str) -> Entry:
    try:
        folder = folder_of(source)
    except LoadError as error:
        raise OptionError("model", str(error)) from error
    if folder is None:
        return Entry(name=source, source=source)
    folder = folder.resolve()
    return Entry(name=folder.name, source=source, folder=folder)


def _models_in(given: str) -> Iterator[Entry]:
    """The models in a folder, named by their paths in it."""
    root = path_of(given)
    if not root.is_dir():
        raise OptionError("model_dir", f"there is no folder {root}; check the path")
    found = [
        config.parent
        for depth in range(1, _DEEPEST + 1)
        for config in sorted(root.glob("/".join(["*"] * depth + ["config.json"])))
    ]
    if not found:
        raise OptionError(
            "model_dir", f"expected models in {root}, but no sub-folder has a config.json"
        )
    for folder in found:
        yield Entry(
            name=folder.relative_to(root).as_posix(), source=str(folder), folder=folder.resolve()
        )


def _add(entries: list[Entry], new: Entry, option: str) -> None:
    """Add a model, or only its name if its folder is already an entry's."""
    for place, known in enumerate(entries):
        if new.folder is not None and new.folder == known.folder:
            if new.name not in known.names:
                entries[place] = replace(known, aliases=(*known.aliases, new.name))
            return
        if new.name in known.names:
            raise OptionError(
                option, f"{new.source} and {known.source} are both called {new.name}; rename one"
            )
    entries.append(new)


def _with_adapter(entries: Sequence[Entry], given: str) -> Entry:
    """The model that ``BASE:NAME=FOLDER`` or ``NAME=FOLDER`` means."""
    called, _, path = given.partition("=")
    source, _, name = called.rpartition(":")
    base = next((each for each in entries if source in each.names), None) if source else entries[0]
    if base is None or base.base is not None or not _ADAPTER_NAME.fullmatch(name):
        names = ", ".join(each.name for each in entries if each.base is None)
        raise OptionError(
            "adapter",
            f"expected NAME=FOLDER or BASE:NAME=FOLDER with a NAME of letters, digits, dots and "
            f"dashes and one of {names} as BASE, got {given!r}",
        )
    folder = path_of(path)
    try:
        check_adapter(folder)
    except LoadError as error:
        raise OptionError("adapter", f"{given}: {error}") from error
    whole = f"{base.name}:{name}"
    if any(whole in each.names for each in entries):
        raise OptionError("adapter", f"{whole} is there already; choose another name")
    return Entry(name=whole, folder=base.folder, base=base.name, adapter=folder)


def _with_aliases(entries: Sequence[Entry], given: Sequence[str]) -> tuple[Entry, ...]:
    """The models with their aliases, each given as ``NAME`` or ``NAME=MODEL``."""
    known = list(entries)
    for text in given:
        alias, _, model = text.partition("=")
        taken = {name: place for place, entry in enumerate(known) for name in entry.names}
        place = taken.get(model, 0) if not model or model in taken else None
        if not alias or place is None:
            names = ", ".join(entry.name for entry in known)
            raise OptionError("alias", f"expected NAME=MODEL with one of {names}, got {text!r}")
        if taken.get(alias, place) != place:
            raise OptionError("alias", f"{alias} is the name of another model; choose another one")
        if alias not in known[place].listed:
            known[place] = replace(known[place], aliases=(*known[place].aliases, alias))
    return tuple(known)
