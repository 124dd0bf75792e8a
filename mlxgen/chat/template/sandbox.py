"""Jinja templates that can be stopped.

Chat templates render in the environment of transformers, with its filters and globals. A rendering
has a time limit, which is checked whenever a template loops or calls something. Between two checks,
a template does only a few operations, in the sandbox that transformers uses as well.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any

from jinja2 import nodes
from jinja2.environment import Environment, Template
from jinja2.meta import find_undeclared_variables
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ...errors import PromptError
from .values import Unsaid

SECONDS = 2.0  # of processor time for a rendering
_UNTIL = "until when"  # a name that no template can write


class SandboxedTemplate:
    """A compiled chat template. Any thread may render it.

    - ``variables``: the names that it takes from its caller, not from the environment.
    - ``literals``: its literal texts, joined by NUL characters.
    - ``keys``: the names that it may look up in its values, such as "tool_calls" in a message.

    PromptError if it cannot be read.
    """

    def __init__(self, source: str) -> None:
        self._environment = _like_transformers()
        try:
            tree = self._environment.parse(source)
            found = [node.data for node in tree.find_all(nodes.TemplateData)]
            texts = [node.value for node in tree.find_all(nodes.Const)]
            texts = [text for text in texts if isinstance(text, str)]
            self.literals = "\0".join([*found, *texts])
            self.keys = frozenset([*(node.attr for node in tree.find_all(nodes.Getattr)), *texts])
            # The next two calls fold the tree's constants, so they come last.
            taken = find_undeclared_variables(tree)
            self._template: Template = self._environment.from_string(tree)
        except Exception as error:
            raise PromptError(f"the model's chat template cannot be read: {error}") from error
        self.variables = frozenset(taken - self._environment.globals.keys())

    def render(self, values: Mapping[str, Any]) -> str:
        """The rendered text. Raises what the template raises; PromptError if it takes too long."""
        values = {**values, _UNTIL: time.thread_time() + SECONDS}
        template = self._template
        return self._environment.concat(template.root_render_func(template.new_context(values)))


class _Environment(ImmutableSandboxedEnvironment):
    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        """The tree of a template, with a call inserted into each loop."""
        tree = super()._parse(source, name, filename)
        for loop in list(tree.find_all(nodes.For)):
            look = nodes.Call(nodes.EnvironmentAttribute("pace"), [], [], None, None)
            loop.body.insert(0, nodes.ExprStmt(look, lineno=loop.lineno))
        return tree.set_environment(self)  # type: ignore[return-value]

    pace = str  # the function called in loops: a quick one

    def call(self, context: Context, called: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call a function, a macro or a method, if there is time left."""
        if time.thread_time() > context.get(_UNTIL, math.inf):
            raise PromptError(
                f"the chat template takes more than {SECONDS:g} s of processor time for these "
                "messages; send fewer or shorter ones"
            )
        return super().call(context, called, *args, **kwargs)


def _like_transformers() -> _Environment:
    """An environment with everything that transformers provides to chat templates."""
    from transformers.utils.chat_template_utils import _compile_jinja_template

    model: Environment = _compile_jinja_template("").environment
    made = _Environment(
        trim_blocks=model.trim_blocks,
        lstrip_blocks=model.lstrip_blocks,
        extensions=[type(extension) for extension in model.extensions.values()],
    )
    made.globals.update(model.globals)
    made.filters.update(model.filters)
    made.tests.update(model.tests)
    made.tests["none"] = lambda value: value is None or isinstance(value, Unsaid)
    return made
