"""Jinja templates that track what they wrote themselves, and that can be stopped.

Chat templates render in the environment of transformers, with its filters and globals, but their
code keeps ``Authored`` text apart from the text of messages, and checks the limits whenever a
template loops, calls or makes something larger.

Invariant: under limits a rendering ends, whatever the template does with whatever values. Every
way to repeat something goes through ``pace`` (the bodies of loops, and calls, so macros too);
between two of those a template runs a bounded number of operations, and none of them may give
more than the limits allow or count further than the sandbox does.
"""

from __future__ import annotations

import functools
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.environment import Environment, Template
from jinja2.filters import make_attrgetter
from jinja2.meta import find_undeclared_variables
from jinja2.nodes import EvalContext
from jinja2.runtime import Context
from jinja2.sandbox import MAX_RANGE, ImmutableSandboxedEnvironment
from jinja2.utils import pass_eval_context

from ...errors import PromptError
from .authored import Authored, joined
from .values import Unsaid

_MOST_BITS = 1 << 16  # of an integer
_COUNTING = {
    *("batch", "center", "format", "indent", "round", "slice", "tojson", "truncate", "wordwrap"),
    *("ljust", "rjust", "zfill", "expandtabs", "to_bytes"),
}
"""Filters and methods that take a count, which may be as large as the sandbox's ranges."""
_COUNT_IN_FORMAT = re.compile(r"\d{6}|\*")


@dataclass(frozen=True, slots=True)
class RenderLimits:
    """What one rendering may take: seconds of processor time, and characters of any text in it."""

    seconds: float = 1.0
    characters: int = 32 << 20


class Meter:
    """The limits of a rendering in this thread."""

    def __init__(self, limits: RenderLimits) -> None:
        self._limits = limits
        self._until = time.thread_time() + limits.seconds

    def look(self) -> None:
        if time.thread_time() > self._until:
            raise PromptError(
                f"the chat template takes more than {self._limits.seconds:g} s of processor time "
                "for these messages; send fewer or shorter ones"
            )

    def check(self, size: int) -> None:
        if size > self._limits.characters:
            raise PromptError(
                f"the chat template renders more than {self._limits.characters} characters for "
                "these messages; send fewer or shorter ones"
            )


class SandboxedTemplate:
    """A compiled chat template. Any thread may render it.

    - ``variables``: the names that it takes from outside, globals included; ``makeshift`` are those
      of them that it also sets itself, without checking whether they were given.
    - ``literals``: its literal texts, joined by NUL characters.
    - ``keys``: what it may look up in its values, such as "tool_calls" in a message.
    - ``taken``: the names that the environment provides.

    PromptError if it cannot be read.
    """

    def __init__(self, source: str) -> None:
        try:
            self._environment = _Environment.like_transformers()
            with self._environment.limited(RenderLimits()):  # constants are computed here
                tree = self._environment.parse(source)
                self.variables = frozenset(find_undeclared_variables(tree))
                self._template: Template = self._environment.from_string(source)
        except Exception as error:
            raise PromptError(f"the model's chat template cannot be read: {error}") from error
        found = [node.data for node in tree.find_all(nodes.TemplateData)]
        values = [node.value for node in tree.find_all(nodes.Const)]
        found += [value for value in values if isinstance(value, str)]
        self.literals = "\0".join(found)
        attributes = (node.attr for node in tree.find_all(nodes.Getattr))
        self.keys = frozenset([*attributes, *(v for v in values if isinstance(v, str))])
        self.makeshift = _set_anyway(tree)
        self.taken = frozenset(self._environment.globals)

    def render(self, values: Mapping[str, Any], limits: RenderLimits | None) -> str:
        """The text, ``Authored`` unless none of it is the template's. Raises what it raises."""
        environment, template = self._environment, self._template
        with environment.limited(limits):
            pieces = template.root_render_func(template.new_context(dict(values)))
            return environment.concat(pieces)


def _set_anyway(tree: nodes.Template) -> frozenset[str]:
    names = {name.name for name in tree.find_all(nodes.Name) if name.ctx == "store"}
    asked: set[str] = set()
    for node in tree.find_all((nodes.Test, nodes.Filter)):
        if node.name in ("defined", "undefined", "none", "default", "d"):
            asked |= {name.name for name in node.find_all(nodes.Name)}
    return frozenset(names - asked)


class _Code(CodeGenerator):
    """Marks the template's strings as its own, and checks the limits in loops."""

    def visit_Const(self, node: nodes.Const, frame: Frame) -> None:  # noqa: N802
        if isinstance(node.value, str):
            self.write(f"environment.own({node.value!r})")
        else:
            super().visit_Const(node, frame)

    def visit_TemplateData(self, node: nodes.TemplateData, frame: Frame) -> None:  # noqa: N802
        self.write(f"environment.own({node.data!r})")

    def _output_const_repr(self, group: Iterable[Any]) -> str:
        return f"environment.own({''.join(map(str, group))!r})"

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:  # noqa: N802
        self.write("environment.concat(map(str, (")
        for argument in node.nodes:
            self.visit(argument, frame)
            self.write(", ")
        self.write(")))")

    def visit_For(self, node: nodes.For, frame: Frame) -> None:  # noqa: N802
        look = nodes.ExprStmt(
            nodes.Call(nodes.EnvironmentAttribute("pace"), [], [], None, None), lineno=node.lineno
        )
        node.body.insert(0, look.set_environment(self.environment))
        super().visit_For(node, frame)


class _Environment(ImmutableSandboxedEnvironment):
    code_generator_class = _Code
    intercepted_binops = frozenset(("+", "*", "**", "%"))

    @classmethod
    def like_transformers(cls) -> _Environment:
        """An environment with everything that transformers gives to chat templates."""
        from transformers.utils.chat_template_utils import _compile_jinja_template

        model: Environment = _compile_jinja_template("").environment
        made = cls(
            trim_blocks=model.trim_blocks,
            lstrip_blocks=model.lstrip_blocks,
            extensions=[type(extension) for extension in model.extensions.values()],
        )
        made.globals.update(model.globals)
        made.globals.pop("lipsum", None)  # it repeats as often as it is told to
        made.filters.update(model.filters)
        made.filters["join"] = _join
        made.filters = {name: _watched(made, name, f) for name, f in made.filters.items()}
        made.tests.update(model.tests)
        made.tests["none"] = _is_none
        return made

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._here = threading.local()
        self._owned: dict[str, Authored] = {}  # the template's own strings

    # ---- limits ----

    @contextmanager
    def limited(self, limits: RenderLimits | None) -> Iterator[None]:
        """Holds what this thread renders to the limits."""
        self._here.meter = None if limits is None else Meter(limits)
        try:
            yield
        finally:
            self._here.meter = None

    @property
    def meter(self) -> Meter | None:
        meter: Meter | None = getattr(self._here, "meter", None)
        return meter

    def pace(self) -> str:
        """Checks the limits, as every call from a template does."""
        return ""

    def check_counts(self, name: str, arguments: Iterable[Any]) -> None:
        if name in _COUNTING and self.meter is not None:
            for argument in arguments:
                if isinstance(argument, int) and argument > MAX_RANGE:
                    raise PromptError(
                        f"the chat template calls {name} with {argument}; at most {MAX_RANGE} is "
                        "allowed"
                    )

    # ---- what the code of a template calls ----

    def own(self, text: str) -> Authored:
        """A string of the template."""
        known = self._owned.get(text)
        if known is None:
            known = self._owned[text] = Authored(text)
        return known

    def concat(self, parts: Iterable[str]) -> str:
        """The parts as one text: of blocks, of macros, and of the whole template."""
        meter = self.meter
        if meter is None:
            return joined(list(parts))
        known, size = [], 0
        for part in parts:
            known.append(part)
            size += len(part)
            meter.check(size)
        return joined(known)

    def call(self, context: Context, called: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Calls a function, a macro or a method."""
        meter = self.meter
        receiver = getattr(called, "__self__", None)
        if meter is not None:
            meter.look()
            if isinstance(receiver, (str, bytes, int)):
                name = getattr(called, "__name__", "")
                self.check_counts(name, (*args, *kwargs.values()))
                if name == "join" and args:
                    args = (list(args[0]), *args[1:])
                self.check_growth(name, receiver, args)
        result = super().call(context, called, *args, **kwargs)
        if isinstance(receiver, Authored):
            return _credited(result, (receiver, *args, *kwargs.values()))
        return result

    def check_growth(self, name: str, text: Any, args: tuple[Any, ...]) -> None:
        """Checks operations whose result can be as long as the product of their values."""
        meter = self.meter
        if meter is None or not isinstance(text, str):
            return
        if name == "join" and args:
            parts = args[0]
            meter.check(sum(len(part) + len(text) for part in parts if isinstance(part, str)))
        elif name == "replace" and len(args) > 1:
            old, new = str(args[0]), str(args[1])
            meter.check(text.count(old) * max(0, len(new) - len(old)) + len(text))
        elif name == "translate" and args and isinstance(args[0], Mapping):
            longest = max((len(v) for v in args[0].values() if isinstance(v, str)), default=1)
            meter.check(len(text) * longest)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        if wrapped is None or self.meter is None:
            return wrapped
        receiver = value.__self__

        @functools.wraps(wrapped)
        def formatted(*args: Any, **kwargs: Any) -> str:
            _check_format(receiver, (*args, *kwargs.values()))
            return wrapped(*args, **kwargs)

        return formatted

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Runs an operator whose result can be much larger than its values."""
        meter = self.meter
        if meter is not None:
            if operator == "+" and hasattr(left, "__len__") and hasattr(right, "__len__"):
                meter.check(len(left) + len(right))
            elif operator == "*":
                meter.check(_product(left, right))
            elif operator == "**" and isinstance(left, int) and isinstance(right, int):
                meter.check(0 if left.bit_length() * right <= _MOST_BITS else sys.maxsize)
            elif operator == "%" and isinstance(left, str):
                _check_format(left, right if isinstance(right, tuple) else (right,))
        return super().call_binop(context, operator, left, right)


def _product(left: Any, right: Any) -> int:
    """The length of ``left * right``; of a number, 0 unless it has too many bits."""
    if isinstance(left, int) and isinstance(right, int):
        return 0 if left.bit_length() + right.bit_length() <= _MOST_BITS else sys.maxsize
    if isinstance(left, int):
        left, right = right, left
    return len(left) * right if hasattr(left, "__len__") and isinstance(right, int) else 0


def _check_format(text: str, values: Iterable[Any]) -> None:
    wide = any(isinstance(value, int) and abs(value) > MAX_RANGE for value in values)
    if _COUNT_IN_FORMAT.search(text) or (wide and "{" in text.partition(":")[2]):
        raise PromptError("the chat template formats a value to more than the allowed width")


def _is_none(value: Any) -> bool:
    """Jinja's test ``none``."""
    return value is None or isinstance(value, Unsaid)


@pass_eval_context
def _join(
    context: EvalContext, value: Iterable[Any], d: str = "", attribute: str | int | None = None
) -> str:
    """Jinja's filter ``join``, for ``Authored`` text."""
    environment = context.environment
    assert isinstance(environment, _Environment)
    if attribute is not None:
        value = map(make_attrgetter(environment, attribute), value)
    parts = [str(part) for part in value]
    environment.check_growth("join", str(d), (parts,))
    return joined(parts, str(d))


def _watched(
    environment: _Environment, name: str, function: Callable[..., Any]
) -> Callable[..., Any]:
    """A filter under the limits, whose text is the template's if all that it got was."""

    @functools.wraps(function)
    def filtered(*args: Any, **kwargs: Any) -> Any:
        meter = environment.meter
        given = [a for a in args if not isinstance(a, (Context, EvalContext, Environment))]
        if meter is not None and given:
            meter.look()
            environment.check_counts(name, (*given[1:], *kwargs.values()))
            if name == "format":
                _check_format(str(given[0]), (*given[1:], *kwargs.values()))
            if name == "sum" and not isinstance(
                kwargs.get("start", (*given, 0, 0)[2]), (int, float)
            ):
                raise PromptError("the chat template sums up values that are not numbers")
            environment.check_growth(
                "replace" if name == "replace" else "", given[0], tuple(given[1:])
            )
        return _credited(function(*args, **kwargs), (*given, *kwargs.values()))

    return filtered


def _credited(result: Any, made_of: tuple[Any, ...]) -> Any:
    """The result; if it was made only of the template's own text, it is its own, too."""
    if type(result) is not str or not isinstance(made_of[0], Authored):
        return result
    for value in made_of:
        if isinstance(value, Authored):
            if not value.is_whole:
                return result
        elif value is not None and not isinstance(value, (bool, int, float)):
            return result
    return Authored(result)
