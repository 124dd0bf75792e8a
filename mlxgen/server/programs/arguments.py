"""The arguments of a Python function as a JSON object: what a signature and its types allow.

Invariant: a function whose arguments could be read can be called with them.
"""

from __future__ import annotations

import inspect
import keyword
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, create_model
from pydantic.errors import PydanticUserError

from ...errors import OptionError
from ..errors import RequestError
from ..validation import validated

MODEL = "lm"
"""The parameter that gets the language model."""

_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class Arguments:
    """What a function takes from a request: all parameters but the ``first``, and ``lm``.

    Raises ``OptionError`` if a request could not give them: they have no names, or types that JSON
    does not have.
    """

    def __init__(self, function: Callable[..., Any], *, first: str | None) -> None:
        try:
            parameters = list(inspect.signature(function).parameters.values())
        except (TypeError, ValueError) as error:
            raise OptionError("", f"its arguments are not known ({error})") from None
        self._taken = {MODEL}
        if first is not None:
            if not parameters or parameters[0].kind is inspect.Parameter.KEYWORD_ONLY:
                raise OptionError("", f"its first parameter has to be for the {first}")
            if parameters[0].kind is not inspect.Parameter.VAR_POSITIONAL:
                self._taken.add(parameters.pop(0).name)
        self.takes_model = any(each.name == MODEL for each in parameters)
        fields: dict[str, Any] = {}
        extra = False
        for each in parameters:
            if each.kind is inspect.Parameter.VAR_KEYWORD:
                extra = True
            elif each.kind is inspect.Parameter.POSITIONAL_ONLY:
                raise OptionError(
                    "", f"its parameter {each.name} has no name for requests; remove the / after it"
                )
            elif each.kind in _BY_NAME and each.name != MODEL:
                default = ... if each.default is inspect.Parameter.empty else each.default
                kind = _type_of(each, function)
                fields[f"field_{len(fields)}"] = kind, Field(default, alias=each.name)
        self._model = _model_of(fields, extra=extra)
        self.schema = self._described()

    def of(self, given: Mapping[str, Any], at: str) -> dict[str, Any]:
        """The keyword arguments of a request's field ``at``; raises ``RequestError``."""
        try:
            checked = validated(given, self._model)
        except RequestError as error:
            assert error.param is not None
            reason = error.message.removeprefix(f"{error.param}: ")
            code = error.code or "invalid_value"
            raise RequestError.at(f"{at}.{error.param}", reason, code) from None
        found = dict(checked.model_extra or {})
        for name in checked.model_fields_set:
            if name in self._model.model_fields:
                alias = self._model.model_fields[name].alias
                assert alias is not None
                found[alias] = getattr(checked, name)
        for name in found:
            if not name.isidentifier() or keyword.iskeyword(name) or name in self._taken:
                raise RequestError.at(f"{at}.{name[:64]}", "is not the name of an argument")
        return found

    def _described(self) -> dict[str, Any]:
        try:
            schema = self._model.model_json_schema()
        except PydanticUserError as error:
            raise _not_json(error) from None
        schema.pop("title", None)
        for each in schema.get("properties", {}).values():
            each.pop("title", None)
        return schema


def _type_of(parameter: inspect.Parameter, function: Callable[..., Any]) -> Any:
    """The annotation of a parameter, if need be from its text; ``Any`` if it has none."""
    kind = parameter.annotation
    if kind is inspect.Parameter.empty:
        return Any
    if not isinstance(kind, str):
        return kind
    while isinstance(function, partial):
        function = function.func
    try:
        return eval(kind, vars(sys.modules[function.__module__]))  # it is the operator's own
    except Exception as error:
        raise OptionError(
            "",
            f"the type {kind} of its parameter {parameter.name} is not known "
            f"({type(error).__name__}: {error}); annotate it with a type that its module imports",
        ) from None


def _model_of(fields: Mapping[str, Any], *, extra: bool) -> type[BaseModel]:
    config = ConfigDict(
        extra="allow" if extra else "forbid", strict=True, allow_inf_nan=False, frozen=True
    )
    try:
        return create_model("Arguments", __config__=config, **fields)
    except PydanticUserError as error:
        raise _not_json(error) from None


def _not_json(error: PydanticUserError) -> OptionError:
    return OptionError(
        "",
        f"one of its types cannot come from JSON ({str(error).splitlines()[0]}); annotate its "
        "parameters with str, int, float, bool, list, dict or Literal",
    )
