"""The operator's code: programs, controllers, hooks and checks by name, and their arguments.

Owns how ``NAME=package.module:attribute`` becomes something that requests can name, and which JSON
arguments its signature and annotations allow. Must never know a request. Invariant: registered code
was imported, is of its kind, and can be called with the arguments that were read.
"""

from __future__ import annotations

import inspect
import keyword
import logging
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, update_wrapper
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from pydantic import ConfigDict, Field, create_model
from pydantic.errors import PydanticUserError

from ..chat.calls.use import Form
from ..errors import HookError, OptionError
from ..filters import AllOf, Checked
from ..filters.checks import command
from ..programs import Program
from ..sampling import Hook, PostSamplingResult
from .bodies import modelled
from .errors import RequestError
from .fields import Named, shown
from .logs import log
from .settings import Settings

if TYPE_CHECKING:
    from ..language_model import LanguageModel

Kind: TypeAlias = Literal["program", "controller", "hook", "check"]

_FIRST: Mapping[Kind, Sequence[str]] = {
    "program": ["guide"],
    "hook": ["sampled token"],
    "check": ["piece", "text before it"],
}
"""What the first parameters of a function are, by kind."""
MODEL = "lm"
"""The parameter that gets the language model."""

_STRICT = ConfigDict(strict=True, allow_inf_nan=False, extra="forbid")
SLOW = 0.1  # seconds: a pause that a reader notices


# ---- hooks ------------------------------------------------------------------------------------


class SlowCalls:
    """Calls of programs, controllers and hooks that took ``SLOW`` seconds or more, by name."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def saw(self, name: str, seconds: float) -> None:
        """Note how long a call took, in the thread that runs all requests."""
        if seconds < SLOW:
            return
        self.counts[name] = times = self.counts[name] + 1
        if times & (times - 1) == 0:  # times 1, 2, 4, 8, ...: not for every token
            said = "the operator's code held others up"
            log(logging.WARNING, said, name=name, seconds=seconds, times=times)


class NamedHook:
    """A hook that is made when it is first called. A fork makes its own."""

    def __init__(self, name: str, make: Callable[[], Hook], slow: SlowCalls) -> None:
        self._name = name
        self._make = make
        self._slow = slow
        self._hook: Hook | None = None

    def __call__(self, result: PostSamplingResult) -> None:
        began = time.monotonic()
        try:
            if self._hook is None:
                self._hook = self._make()
            self._hook(result)
        except HookError:
            raise
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
            log(logging.ERROR, "a hook failed", hook=self._name, error=said)
            raise HookError(
                f"hook {self._name} failed at position {result.position}: {said}"
            ) from error
        finally:
            self._slow.saw(self._name, time.monotonic() - began)

    def fork(self) -> NamedHook:
        """A hook for another sequence."""
        return NamedHook(self._name, self._make, self._slow)


# ---- what is registered -----------------------------------------------------------------------


class Steered(NamedTuple):
    """The operator's code for a request: a program, a controller, a hook or a check, by name.

    ``make`` makes an instance for one generation; it is the operator's code, and may do anything.
    """

    name: str
    make: Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Registered:
    """Code of the operator that requests may name; the target of a check is its ``Checked``."""

    kind: Kind
    name: str
    target: Any
    arguments: Arguments

    @classmethod
    def of(cls, kind: Kind, given: str) -> Registered:
        """Import the attribute of ``NAME=package.module:attribute``; for a check, ``NAME=command``
        also works. Raises ``OptionError``."""
        name, _, place = given.partition("=")
        runs = kind == "check" and re.fullmatch(r"[\w.]+:[\w.]+", place) is None
        whole = r"([\w.-]{1,64})=" + ("(.*)" if runs else r"([\w.]+:[\w.]+)")
        if re.fullmatch(whole, given, re.DOTALL) is None:
            also = " or NAME=command" if kind == "check" else ""
            raise OptionError(kind, f"expected NAME=package.module:attribute{also}, got {given!r}")
        try:
            target = Checked(command(place), at=None) if runs else _imported(place)
            if kind == "check" and callable(target):
                target = Checked(target)
            function = target.check if isinstance(target, Checked) else target
            _check_kind(kind, function)
            first = () if inspect.isclass(function) else _FIRST.get(kind, ())
            return cls(kind, name, target, Arguments(function, first=first))
        except OptionError as error:
            reason = str(error).removeprefix(f"{error.field}: ")
            raise OptionError(kind, f"{given}: {reason}") from error

    def make(self, given: Mapping[str, Any], lm: LanguageModel | None) -> Any:
        """A ``Program``, a controller, a hook or a ``Checked``, for one generation.

        This runs the operator's code: it may raise anything, or not return.
        """
        more = {MODEL: lm} if self.arguments.takes_model else {}
        if self.kind == "check":
            check = self.target.check
            own = update_wrapper(partial(check, **given, **more), check) if given or more else check
            return replace(self.target, check=own)
        if self.kind == "program":
            return Program(partial(self.target, **given, **more))
        if self.kind == "hook" and not inspect.isclass(self.target):
            return partial(self.target, **given, **more)
        return self.target(**given, **more)

    def listed(self) -> dict[str, Any]:
        """Its entry in the answer of ``/v1/programs``."""
        return {
            "id": self.name,
            "object": self.kind,
            "description": inspect.getdoc(getattr(self.target, "check", self.target)) or "",
            "arguments": self.arguments.schema,
        }


@dataclass(frozen=True, slots=True)
class Registry:
    """All registered code, with the model to pass to it; ``slow`` counts its slow calls."""

    everything: tuple[Registered, ...] = ()
    lm: LanguageModel | None = None
    slow: SlowCalls = field(default_factory=SlowCalls)

    @classmethod
    def of(cls, settings: Settings) -> Registry:
        """The code that the settings name; raises ``OptionError`` if it cannot be used."""
        given: tuple[tuple[Kind, Iterable[str]], ...] = (
            ("program", settings.programs),
            ("controller", settings.controllers),
            ("hook", settings.hooks),
            ("check", settings.checks),
        )
        everything = tuple(Registered.of(kind, each) for kind, all in given for each in all)
        named = [(each.kind, each.name) for each in everything]
        for kind, name in named:
            if named.count((kind, name)) > 1:
                raise OptionError(kind, f"{name} is named twice; give each a name of its own")
        return cls(everything)

    def find(self, kind: Kind, name: str, at: str) -> Registered:
        """The code of this kind and name; raises ``RequestError`` (404) if there is none."""
        known = [each for each in self.everything if each.kind == kind]
        for each in known:
            if each.name == name:
                return each
        hint = f"the server was started without any --{kind}"
        hint = f"there are {', '.join(each.name for each in known)}" if known else hint
        raise RequestError(
            f"{at}: there is no {kind} {shown(name)} here; {hint}",
            status=404,
            param=at,
            code=f"{kind}_not_found",
        )

    def steered(
        self, kind: Kind, name: str, at: str, given: Mapping[str, Any] | None, place: str
    ) -> Steered:
        """The code that ``at`` names, with arguments of ``place``; raises ``RequestError``."""
        found = self.find(kind, name, at)
        arguments = found.arguments.of(given or {}, place)
        return Steered(name, partial(found.make, arguments, self.lm))

    def named(self, kind: Kind, asked: str | Named, at: str) -> Steered:
        """The same for a field with a name, or with an object of a name and arguments."""
        if isinstance(asked, str):
            return self.steered(kind, asked, at, None, f"{at}.arguments")
        return self.steered(kind, asked.name, f"{at}.name", asked.arguments, f"{at}.arguments")

    def checked(self, form: Form | None, asked: str | Named) -> Form:
        """The form, with a request's check of the text added; raises ``RequestError``."""
        check: Checked = self.named("check", asked, "check").make()
        if form is None:
            return Form("check", check, is_free=True)
        return replace(form, spec=AllOf(form.spec, check))

    def listed(self) -> dict[str, Any]:
        """The answer of ``/v1/programs``."""
        return {"object": "list", "data": [each.listed() for each in self.everything]}


def _imported(place: str) -> Any:
    here = str(Path.cwd())  # as for python -m; an installed command lacks it
    if not {"", here} & set(sys.path):
        sys.path.append(here)
    try:
        return resolve_name(place)
    except Exception as error:
        said = f"{place} cannot be imported: {type(error).__name__}: {error}"
        raise OptionError("", said) from error


def _check_kind(kind: Kind, target: Any) -> None:
    """Raise ``OptionError`` unless the target can be of this kind."""
    if not callable(target):
        kinds = "a function" if kind == "check" else "a function or a class"
        raise OptionError("", f"expected {kinds}, got {target!r}")
    if kind == "program" and not _is_async(target):
        raise OptionError("", "expected an async function of a guide; write async def")
    if kind in ("hook", "check") and _is_async(target):
        raise OptionError("", f"a {kind} is not awaited; write def instead of async def")
    if kind == "check" and inspect.isclass(target):
        raise OptionError("", "expected a function, got a class")
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


# ---- arguments --------------------------------------------------------------------------------


class Arguments:
    """The arguments that a function takes from a request: all but the ``first`` ones and ``lm``.

    Raises ``OptionError`` if a request could not give them: because they have no names, or types
    that JSON does not have.
    """

    def __init__(self, function: Callable[..., Any], *, first: Sequence[str]) -> None:
        try:
            signature = inspect.signature(function, eval_str=True)
        except Exception as error:  # an annotation may be any string
            raise OptionError(
                "",
                f"its arguments are not known ({type(error).__name__}: {error}); annotate them "
                "with types that its module imports",
            ) from None
        parameters = list(signature.parameters.values())
        self._taken = {MODEL}
        for nth, what in zip(("first", "second"), first, strict=False):
            if not parameters or parameters[0].kind is inspect.Parameter.KEYWORD_ONLY:
                raise OptionError("", f"its {nth} parameter has to be for the {what}")
            if parameters[0].kind is not inspect.Parameter.VAR_POSITIONAL:
                self._taken.add(parameters.pop(0).name)
        fields, config = dict[str, Any](), _STRICT
        for each in parameters:
            if each.kind is inspect.Parameter.POSITIONAL_ONLY:
                raise OptionError(
                    "", f"its parameter {each.name} has no name for requests; remove the / after it"
                )
            if each.kind is inspect.Parameter.VAR_KEYWORD:
                config = ConfigDict(**{**_STRICT, "extra": "allow"})
            elif each.kind is not inspect.Parameter.VAR_POSITIONAL and each.name != MODEL:
                kind = Any if each.annotation is each.empty else each.annotation
                default = ... if each.default is each.empty else each.default
                # pydantic keeps some names for itself
                fields[f"given_{each.name}"] = (kind, Field(default, alias=each.name))
        self.takes_model = any(each.name == MODEL for each in parameters)
        try:
            self._model = create_model("Arguments", __config__=config, **fields)
            self.schema = self._model.model_json_schema()
        except PydanticUserError as error:
            raise OptionError(
                "",
                f"one of its types cannot come from JSON ({str(error).splitlines()[0]}); annotate "
                "its parameters with str, int, float, bool, list, dict or Literal",
            ) from None
        for about in self.schema.setdefault("properties", {}).values():
            about.pop("title", None)

    def of(self, given: Mapping[str, Any], at: str) -> dict[str, Any]:
        """The keyword arguments of a request's field ``at``; raises ``RequestError``."""
        for name in given:
            if not name.isidentifier() or keyword.iskeyword(name) or name in self._taken:
                raise RequestError.at(f"{at}.{name[:64]}", "is not the name of an argument")
        try:
            found = modelled(given, self._model.model_validate)
        except RequestError as error:
            assert error.param is not None
            reason = error.message.removeprefix(f"{error.param}: ")
            code = error.code or "invalid_value"
            raise RequestError.at(f"{at}.{error.param}", reason, code) from None
        return {
            name.removeprefix("given_"): getattr(found, name) for name in found.model_fields_set
        }
