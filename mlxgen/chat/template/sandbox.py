"""Jinja templates that can be stopped.

Chat templates render in the environment of transformers, with its filters and globals. A rendering
has one limit of time, which is looked at whenever a template loops or calls something. Between two
looks it runs a few operations in C, which nothing can stop; so an operation whose result may be as
large as the product of its values is refused before it begins, and so is text made of a list that
is too large: a list that doubles itself is small in memory and endless on paper.
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
from jinja2.environment import Environment, Template
from jinja2.meta import find_undeclared_variables
from jinja2.nodes import EvalContext
from jinja2.runtime import Context
from jinja2.sandbox import MAX_RANGE, ImmutableSandboxedEnvironment

from ...errors import PromptError
from .values import Unsaid

_MOST_BITS = 1 << 16  # of an integer
_MOST_ITEMS = 1 << 20  # of a list
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

    def check(self, size: int, most: int = sys.maxsize) -> None:
        """Refuse a text of so many characters, or a list of more items than ``most``."""
        if size > min(most, self._limits.characters):
            raise PromptError(
                f"the chat template renders more than {self._limits.characters} characters for "
                "these messages; send fewer or shorter ones"
            )

    def weigh(self, value: Any) -> int:
        """How long the text of a value is, at least; refuses one that is too long."""
        total, waiting = 0, [value]
        while waiting:
            one = waiting.pop()
            if isinstance(one, str):
                total += len(one)
            elif isinstance(one, Mapping):
                waiting.extend(one)
                waiting.extend(one.values())
            elif isinstance(one, (list, tuple)):
                waiting.extend(one)
            total += 1
            self.check(total)
            self.check(len(waiting), _MOST_ITEMS)
            if not total & 0xFFF:
                self.look()
        return total


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
        """The text. Raises what the template raises, and PromptError if it exceeds the limits."""
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


class _Environment(ImmutableSandboxedEnvironment):
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
        made.filters = {name: _watched(made, name, f) for name, f in made.filters.items()}
        made.tests.update(model.tests)
        made.tests["none"] = _is_none
        made.finalize = made.weighed
        return made

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._here = threading.local()

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        """The tree, with a look at the clock in each loop, and at what ``~`` makes text of."""
        tree = super()._parse(source, name, filename)
        for loop in list(tree.find_all(nodes.For)):
            loop.body.insert(0, nodes.ExprStmt(self._own("pace"), lineno=loop.lineno))
        for joined in list(tree.find_all(nodes.Concat)):
            joined.nodes = [self._own("weighed", each) for each in joined.nodes]
        return tree.set_environment(self)  # type: ignore[return-value]

    def _own(self, name: str, *arguments: nodes.Expr) -> nodes.Call:
        return nodes.Call(nodes.EnvironmentAttribute(name), [*arguments], [], None, None)

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

    def weighed(self, value: Any) -> Any:
        """A value that is about to become text."""
        if self.meter is not None and isinstance(value, (list, tuple, Mapping)):
            self.meter.weigh(value)
        return value

    # ---- what the code of a template calls ----

    def concat(self, parts: Iterable[str]) -> str:
        """The parts as one text: of blocks, of macros, and of the whole template."""
        meter = self.meter
        if meter is None:
            return "".join(parts)
        known, size = [], 0
        for part in parts:
            known.append(part)
            size += len(part)
            meter.check(size)
        return "".join(known)

    def call(self, context: Context, called: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Calls a function, a macro or a method."""
        meter = self.meter
        if meter is not None:
            meter.look()
            receiver = getattr(called, "__self__", None)
            if isinstance(receiver, (str, bytes, int)):
                name = getattr(called, "__name__", "")
                if name == "join" and args:
                    args = (list(args[0]), *args[1:])
                self.check(name, receiver, args, kwargs)
        return super().call(context, called, *args, **kwargs)

    def check(self, name: str, text: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Checks filters and methods whose result can be as long as the product of their values."""
        meter = self.meter
        if meter is None:
            return
        given = (*args, *kwargs.values())
        counts = [value for value in given if isinstance(value, int)] if name in _COUNTING else []
        if counts and max(counts) > MAX_RANGE:
            raise PromptError(
                f"the chat template calls {name} with {max(counts)}; at most {MAX_RANGE} is allowed"
            )
        if name in ("format", "format_map"):
            meter.weigh(given)
            _check_format(str(text), given)
        elif name == "join":
            parts = args[0] if args else ()
            meter.check(meter.weigh(parts) + len(parts) * len(str(text)))
        elif name == "replace" and isinstance(text, str) and len(args) > 1:
            old, new = str(args[0]), str(args[1])
            meter.check(text.count(old) * max(0, len(new) - len(old)) + len(text))
        elif name == "translate" and args and isinstance(args[0], Mapping):
            longest = max((len(v) for v in args[0].values() if isinstance(v, str)), default=1)
            meter.check(len(str(text)) * longest)
        elif name in ("indent", "wordwrap", "expandtabs", "tojson"):
            longest = max([0, *counts, *(len(value) for value in given if isinstance(value, str))])
            times = str(text).count("\n") + 1 if name == "indent" else meter.weigh(text)
            meter.check(times * longest)

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
            most = sys.maxsize if isinstance(left, str) else _MOST_ITEMS
            if operator == "+" and hasattr(left, "__len__") and hasattr(right, "__len__"):
                meter.check(len(left) + len(right), most)
            elif operator == "*":
                meter.check(_product(left, right), most)
            elif operator == "**" and isinstance(left, int) and isinstance(right, int):
                meter.check(0 if left.bit_length() * right <= _MOST_BITS else sys.maxsize)
            elif operator == "%" and isinstance(left, str):
                meter.weigh(right)
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


def _watched(
    environment: _Environment, name: str, function: Callable[..., Any]
) -> Callable[..., Any]:
    """A filter under the limits."""

    @functools.wraps(function)
    def filtered(*args: Any, **kwargs: Any) -> Any:
        meter = environment.meter
        if meter is None:
            return function(*args, **kwargs)
        meter.look()
        at = isinstance(args[0], (Context, EvalContext, Environment)) if args else 0
        context, given = args[:at], list(args[at:])
        if name == "sum" and not isinstance(kwargs.get("start", (*given, 0, 0)[2]), (int, float)):
            raise PromptError("the chat template sums up values that are not numbers")
        if given and name == "join":
            given[0] = list(given[0])
            between = str((*given, "")[1] if len(given) > 1 else kwargs.get("d", ""))
            environment.check("join", between, (given[0],), {})
        elif given and name in ("string", "pprint", "urlencode", "escape", "e", "forceescape"):
            meter.weigh(given[0])
        elif given:
            environment.check(name, given[0], tuple(given[1:]), kwargs)
        return function(*context, *given, **kwargs)

    return filtered
