"""Jinja templates that can be stopped.

Chat templates render in the environment of transformers, with its filters and globals. A rendering
has one limit of time, which is looked at whenever a template loops or calls something. What a
template does between two looks is a few operations, in the sandbox that transformers uses as well.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from jinja2 import nodes
from jinja2.environment import Environment, Template
from jinja2.meta import find_undeclared_variables
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ...errors import PromptError
from .values import Unsaid


@dataclass(frozen=True, slots=True)
class RenderLimits:
    """What one rendering may take: seconds of processor time."""

    seconds: float = 1.0


class Meter:
    """The time that is left for a rendering in this thread."""

    def __init__(self, limits: RenderLimits) -> None:
        self._limits = limits
        self._until = time.thread_time() + limits.seconds

    @property
    def is_over(self) -> bool:
        return time.thread_time() > self._until

    def look(self) -> None:
        """PromptError if it is over."""
        if self.is_over:
            raise PromptError(
                f"the chat template takes more than {self._limits.seconds:g} s of processor time "
                "for these messages; send fewer or shorter ones"
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
            tree = self._environment.parse(source)
            self._template: Template = self._environment.from_string(source)
        except Exception as error:
            raise PromptError(f"the model's chat template cannot be read: {error}") from error
        found = [node.data for node in tree.find_all(nodes.TemplateData)]
        values = [node.value for node in tree.find_all(nodes.Const)]
        texts = [value for value in values if isinstance(value, str)]
        self.literals = "\0".join([*found, *texts])
        self.keys = frozenset([*(node.attr for node in tree.find_all(nodes.Getattr)), *texts])
        self.makeshift = _set_anyway(tree)
        self.variables = frozenset(find_undeclared_variables(tree))  # which folds constants
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
        made.filters.update(model.filters)
        made.tests.update(model.tests)
        made.tests["none"] = _is_none
        return made

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._here = threading.local()

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        """The tree, with a look at the clock in each loop."""
        tree = super()._parse(source, name, filename)
        for loop in list(tree.find_all(nodes.For)):
            look = nodes.Call(nodes.EnvironmentAttribute("pace"), [], [], None, None)
            loop.body.insert(0, nodes.ExprStmt(look, lineno=loop.lineno))
        return tree.set_environment(self)  # type: ignore[return-value]

    @contextmanager
    def limited(self, limits: RenderLimits | None) -> Iterator[None]:
        """Holds what this thread renders to the limits."""
        self._here.meter = None if limits is None else Meter(limits)
        try:
            yield
        finally:
            self._here.meter = None

    def pace(self) -> str:
        """Looks at the clock, as every call from a template does."""
        return ""

    def call(self, context: Context, called: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Calls a function, a macro or a method."""
        meter: Meter | None = getattr(self._here, "meter", None)
        if meter is not None:
            meter.look()
        return super().call(context, called, *args, **kwargs)


def _is_none(value: Any) -> bool:
    """Jinja's test ``none``."""
    return value is None or isinstance(value, Unsaid)
