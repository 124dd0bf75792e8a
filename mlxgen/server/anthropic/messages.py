"""Requests of the Messages API: from the body to a ``Call``, or to the tokens of its prompt.

Invariant: that of chat requests.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from typing import Any

from ...chat import Chat
from ...chat.calls.use import Form, ToolUse
from ...chat.template.sandbox import RenderLimits
from ...chat.turn import Effort, Plan, Turn, plan_turn
from ...engine import Prompt
from ...errors import MlxgenError
from ...filters import JsonSchema
from ..asked import Asked, Row, call_of
from ..call import Call
from ..errors import RequestError, as_request_error
from ..logs import log
from ..reading import read
from ..served_model import ServedModel
from .conversation import rendered
from .reply import MessagesReply
from .schemas import CountRequest, FunctionTool, MessagesRequest

_FIELDS = {"prompt": "messages", "reasoning_effort": "output_config.effort"}
_MODES: Mapping[str, Any] = {"auto": "auto", "any": "required", "tool": "named"}


def parse_messages(body: Mapping[str, Any], model: ServedModel) -> Call:
    """Parse a body; raises ``RequestError``, which names the field at fault."""
    request = read(body, MessagesRequest)
    plan = _plan(request, model)
    sampling = {name: getattr(request, name) for name in ("temperature", "top_p", "top_k")}
    stops = request.stop_sequences or []
    asked = Asked(
        rows=[Row(at="messages", prompt=Prompt(plan.ids, plan.opens_text), reading=plan.reading)],
        options={**sampling, "max_tokens": request.max_tokens, "stop": stops},
        spec=plan.spec,
        stop=plan.stop,
        stream=bool(request.stream),
        watched=True,  # a stream begins with the size of its prompt
        ends_with_done=False,
        params={**_FIELDS, "filters": plan.field},
    )
    silent = request.thinking is not None and request.thinking.type == "disabled"
    make = partial(
        MessagesReply,
        model=model.name,
        stream=asked.stream,
        stops=frozenset(stops),
        thinks=not silent,
        params=asked.params,
    )
    return call_of(asked, model, lambda rows, options, id, created: make(rows[0].reading, id))


def count_tokens(body: Mapping[str, Any], model: ServedModel) -> dict[str, Any]:
    """How many tokens the prompt of a request has."""
    return {"input_tokens": len(_plan(read(body, CountRequest), model).ids)}


def _plan(request: CountRequest, model: ServedModel) -> Plan:
    messages = rendered(request.system, request.messages)
    last = request.messages[-1]
    chat = Chat(messages, continue_final_message=last.role == "assistant")
    if chat.continue_final_message and not messages[-1]["content"]:
        raise RequestError.at(
            f"messages[{len(request.messages) - 1}].content",
            "expected some text to be continued, or a message of the user as the last one",
        )
    try:
        turn = Turn(
            chat=chat,
            tools=_tools(request) if model.dialect.tools is not None else None,
            form=_form(request),
            effort=model.dialect.nearest(_effort(request)),
        )
        return plan_turn(turn, model.dialect, RenderLimits())
    except MlxgenError as error:
        raise as_request_error(error, {**_FIELDS, "filters": "output_config.format"}) from error


def _tools(request: CountRequest) -> ToolUse | None:
    tools = [tool for tool in request.tools or () if isinstance(tool, FunctionTool)]
    if request.tools and len(tools) < len(request.tools):
        count = len(request.tools) - len(tools)
        log(logging.INFO, "left out tools that only a remote service runs", count=count)
    choice = request.tool_choice
    kind = "auto" if choice is None else choice.type
    names = [tool.name for tool in tools]
    for i, name in enumerate(names):
        if name in names[:i]:
            raise RequestError.at(f"tools[{i}].name", f"{name} is defined twice")
    if kind == "none" or (not tools and kind == "auto"):
        return None
    if not tools:
        raise RequestError.at("tool_choice", "there are no tools to choose from; send tools")
    if kind == "tool":
        assert choice is not None
        if choice.name not in names:
            raise RequestError.at("tool_choice.name", f"{choice.name!r} is not one of the tools")
        names = [choice.name]
    return ToolUse(
        tools=tuple([_shown(tool) for tool in tools]),
        mode=_MODES[kind],
        names=names,
        strict=frozenset([tool.name for tool in tools if tool.strict]),
        many=not (choice is not None and choice.disable_parallel_tool_use),
    )


def _shown(tool: FunctionTool) -> dict[str, Any]:
    function: dict[str, Any] = {"name": tool.name}
    if tool.description is not None:
        function["description"] = tool.description
    return {"type": "function", "function": {**function, "parameters": tool.input_schema}}


def _form(request: CountRequest) -> Form | None:
    config = request.output_config
    if config is None or config.format is None:
        return None
    schema = JsonSchema(config.format.schema_, closed=True)
    return Form("output_config.format", schema, is_json=True)


def _effort(request: CountRequest) -> Effort | None:
    if request.thinking is not None and request.thinking.type == "disabled":
        return "none"
    return None if request.output_config is None else request.output_config.effort
