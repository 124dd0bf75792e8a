"""What the operator has registered: programs, controllers and hooks by name.

Owns how ``NAME=package.module:attribute`` becomes something that requests can name. Must never know
a request. Invariant: what is registered was imported, is of its kind, and has arguments that JSON
can spell.
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from ...errors import OptionError
from ...filters import Checked
from ...filters.checks import command
from ...programs import Program
from ..errors import RequestError
from ..fields import shown
from ..settings import Settings
from .arguments import MODEL, Arguments
from .hooks import NamedHook, SlowCalls

if TYPE_CHECKING:
    from ...language_model import LanguageModel

Kind: TypeAlias = Literal["program", "controller", "hook"]

_FIRST: Mapping[Kind, str] = {"program": "guide", "hook": "sampled token"}


class Steered(NamedTuple):
    """What decides on the text: a program or a controller of the operator's, by name.

    ``make`` makes it for one generation. It is the operator's code, and may do anything.
    """

    name: str
    make: Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Registered:
    """Something of the operator's that requests may name."""

    kind: Kind
    name: str
    target: Callable[..., Any]
    arguments: Arguments

    @classmethod
    def of(cls, kind: Kind, given: str) -> Registered:
        """Import what ``NAME=package.module:attribute`` says; raises ``OptionError``."""
        match = re.fullmatch(r"([\w.-]{1,64})=([\w.]+):([\w.]+)", given)
        if match is None:
            raise OptionError(kind, f"expected NAME=package.module:attribute, got {given!r}")
        name, module, attribute = match.groups()
        try:
            target = _imported(module, attribute)
            _check_kind(kind, target)
            first = None if inspect.isclass(target) else _FIRST.get(kind)
            return cls(kind, name, target, Arguments(target, first=first))
        except OptionError as error:
            reason = str(error).removeprefix(f"{error.field}: ")
            raise OptionError(kind, f"{given}: {reason}") from error

    def make(self, given: Mapping[str, Any], lm: LanguageModel | None) -> Any:
        """A ``Program``, a controller or a hook, for one generation.

        This runs the operator's code: it may raise anything, or not return.
        """
        more = {MODEL: lm} if self.arguments.takes_model else {}
        if self.kind == "program":
            return Program(partial(self.target, **given, **more))
        if self.kind == "hook" and not inspect.isclass(self.target):
            return partial(self.target, **given, **more)
        return self.target(**given, **more)

    def listed(self) -> dict[str, Any]:
        """What ``/v1/programs`` says of it."""
        return {
            "id": self.name,
            "object": self.kind,
            "description": inspect.getdoc(self.target) or "",
            "arguments": self.arguments.schema,
        }


@dataclass(frozen=True, slots=True)
class Registry:
    """All that is registered, with the model for it; ``slow`` counts what takes long."""

    everything: tuple[Registered, ...] = ()
    lm: LanguageModel | None = None
    slow: SlowCalls = field(default_factory=SlowCalls)
    checks: Mapping[str, Checked] = field(default_factory=dict)

    @classmethod
    def of(
        cls, settings: Settings, lm: LanguageModel | None = None, slow: SlowCalls | None = None
    ) -> Registry:
        """What the settings name; raises ``OptionError`` if it cannot be used."""
        given: tuple[tuple[Kind, Iterable[str]], ...] = (
            ("program", settings.programs),
            ("controller", settings.controllers),
            ("hook", settings.hooks),
        )
        everything = tuple(Registered.of(kind, each) for kind, all in given for each in all)
        checks = list(map(_check_of, settings.checks))
        named: list[tuple[str, str]] = [(each.kind, each.name) for each in everything]
        named += [("check", name) for name, _ in checks]
        for kind, name in named:
            if named.count((kind, name)) > 1:
                raise OptionError(kind, f"{name} is named twice; give each a name of its own")
        return cls(everything, lm, slow or SlowCalls(), dict(checks))

    def find(self, kind: Kind, name: str, at: str) -> Registered:
        """What has a name; raises ``RequestError`` (404) if nothing of its kind has."""
        known = [each for each in self.everything if each.kind == kind]
        for each in known:
            if each.name == name:
                return each
        raise self._not_found(kind, name, at, [each.name for each in known])

    def _not_found(self, kind: str, name: str, at: str, known: Sequence[str]) -> RequestError:
        hint = f"the server was started without any --{kind}"
        hint = f"there are {', '.join(known)}" if known else hint
        return RequestError(
            f"{at}: there is no {kind} {shown(name)} here; {hint}",
            status=404,
            param=at,
            code=f"{kind}_not_found",
        )

    def steered(
        self, kind: Kind, name: str, at: str, given: Mapping[str, Any] | None, place: str
    ) -> Steered:
        """What a field ``at`` names, with the arguments of ``place``; raises ``RequestError``."""
        found = self.find(kind, name, at)
        arguments = found.arguments.of(given or {}, place)
        return Steered(name, partial(found.make, arguments, self.lm))

    def hook(self, name: str, at: str, given: Mapping[str, Any] | None, place: str) -> NamedHook:
        """A hook likewise."""
        return NamedHook(*self.steered("hook", name, at, given, place), self.slow)

    def check(self, name: str, at: str) -> Checked:
        """The check that has a name; raises ``RequestError`` (404) if none has."""
        found = self.checks.get(name)
        if found is None:
            raise self._not_found("check", name, at, list(self.checks))
        return found

    def listed(self) -> dict[str, Any]:
        """The answer of ``/v1/programs``."""
        checks = [
            {"id": name, "object": "check", "description": inspect.getdoc(each.check) or ""}
            for name, each in self.checks.items()
        ]
        return {"object": "list", "data": [*(each.listed() for each in self.everything), *checks]}


def _check_of(given: str) -> tuple[str, Checked]:
    """What ``NAME=package.module:attribute`` says, or ``NAME=command``; raises ``OptionError``."""
    name, equals, place = given.partition("=")
    if not equals or not re.fullmatch(r"[\w.-]{1,64}", name):
        raise OptionError(
            "check", f"expected NAME=package.module:attribute or NAME=command, got {given!r}"
        )
    if re.fullmatch(r"[\w.]+:[\w.]+", place) is None:
        return name, Checked(command(place), at=None)
    try:
        found = _imported(*place.split(":"))
        return name, found if isinstance(found, Checked) else Checked(found)
    except OptionError as error:
        reason = str(error).removeprefix(f"{error.field}: ")
        raise OptionError("check", f"{given}: {reason}") from error


def _imported(module: str, attribute: str) -> Any:
    here = str(Path.cwd())  # as for python -m; a command that is installed does not have it
    if not {"", here} & set(sys.path):
        sys.path.append(here)
    try:
        found: Any = importlib.import_module(module)
    except Exception as error:
        raise OptionError(
            "", f"{module} cannot be imported: {type(error).__name__}: {error}"
        ) from error
    for step in attribute.split("."):
        try:
            found = getattr(found, step)
        except AttributeError:
            raise OptionError("", f"there is no {attribute} in {module}") from None
    return found


def _check_kind(kind: Kind, target: Any) -> None:
    """Raise ``OptionError`` for what cannot be one of its kind."""
    if not callable(target):
        raise OptionError("", f"expected a function or a class, got {target!r}")
    if kind == "program" and not _is_async(target):
        raise OptionError("", "expected an async function of a guide; write async def")
    if kind == "hook" and _is_async(target):
        raise OptionError("", "a hook is not awaited; write def instead of async def")
    if not inspect.isclass(target):
        return
    if kind == "controller" and not (hasattr(target, "mid_process") or hasattr(target, "bind")):
        raise OptionError("", "expected a class with mid_process")
    if kind == "hook" and not any("__call__" in vars(base) for base in target.__mro__):
        raise OptionError("", "expected a function, or a class with __call__")


def _is_async(target: Any) -> bool:
    return inspect.iscoroutinefunction(target) or inspect.iscoroutinefunction(
        getattr(target, "__call__", None)  # noqa: B004 (whether that is async)
    )
