"""All APIs, and what the three of chats have in common, so that one test can try it on each."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import httpx

from mlxgen.server import ask as server
from mlxgen.server import llama, messages, openai, responses
from mlxgen.server.ask import Ask
from mlxgen.server.bodies import read
from mlxgen.server.reply import Event
from mlxgen.server.served_model import ServedModel

from .kit import HELLO, model_of
from .running import Running

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"path": {"type": "string"}},
    "required": ["path"],
}


class Endpoint(NamedTuple):
    """An API, and its plainest body."""

    api: server.Api
    plainest: Mapping[str, Any]

    @property
    def path(self) -> str:
        return self.api.path

    def parse(
        self, body: Mapping[str, Any], model: ServedModel, unknown: set[str] | None = None
    ) -> Ask:
        """What a body asks for, by way of its bytes; ``unknown`` are the unknown fields that the
        log has named."""
        strict = model is model_of("strict")
        known = read(json.dumps(body).encode(), self.api.body, None if strict else unknown or set())
        return self.api.asks(known, model)


ENDPOINTS: Mapping[str, Endpoint] = {
    "chat": Endpoint(openai.CHATS, {"messages": HELLO}),
    "completions": Endpoint(openai.COMPLETIONS, {"prompt": "Hello"}),
    "messages": Endpoint(messages.MESSAGES, {"messages": HELLO, "max_tokens": 20}),
    "responses": Endpoint(responses.RESPONSES, {"input": "Hello"}),
    "llama": Endpoint(llama.COMPLETION, {"prompt": "Hello"}),
    "infill": Endpoint(llama.INFILL, {"input_prefix": "def f(", "input_suffix": "):\n"}),
}


class Said(NamedTuple):
    """An answer, whichever API it came by; the arguments of a call that was cut off are none."""

    model: str
    text: str
    thoughts: str
    calls: list[tuple[str, Any]]
    reason: str
    prompt: int
    cached: int
    completion: int


@dataclass(frozen=True, eq=False)
class Api:
    """An API: where it is, how its requests spell what they have in common, and its answers."""

    name: str
    prompt: str
    limit: str
    usage: Mapping[str, Any]
    tool: Callable[..., dict[str, Any]]
    choice: Callable[[str], Any]
    effort: Callable[[str], dict[str, Any]]
    form: Callable[[Any], dict[str, Any]]
    whole: Callable[[Any], Said]
    streamed: Callable[[Sequence[Event]], Said]

    def __str__(self) -> str:
        return self.name

    @property
    def path(self) -> str:
        return ENDPOINTS[self.name].path

    def body(
        self,
        asked: Any = "Hello",
        *,
        limit: int | None = None,
        functions: Sequence[Mapping[str, Any]] = (),
        calls: str | None = None,
        effort: str | None = None,
        form: Any = None,
        **fields: Any,
    ) -> dict[str, Any]:
        """A request; ``asked`` is what the user says, or a conversation, ``functions`` are what
        ``tool`` takes, and ``calls`` is the choice of them."""
        talk = [{"role": "user", "content": asked}] if isinstance(asked, str) else asked
        body = {self.prompt: talk, **fields}
        if limit is not None:
            body[self.limit] = limit
        if functions:
            body["tools"] = [self.tool(**each) for each in functions]
        if calls is not None:
            body["tool_choice"] = self.choice(calls)
        body |= {} if effort is None else self.effort(effort)
        return body | ({} if form is None else self.form(form))

    def answered(
        self, server: Running, body: Mapping[str, Any], **options: Any
    ) -> tuple[Said | None, httpx.Response]:
        """What a server says to it, also in a stream, or ``None`` if it fails."""
        if not body.get("stream"):
            answer = server.post(self.path, body, **options)
            return self.whole(answer.json()) if answer.is_success else None, answer
        answer = server.post(self.path, {**body, **self.usage}, **options)
        lines = [line for line in answer.text.split("\n") if line.startswith("data: {")]
        events = [json.loads(line.removeprefix("data: ")) for line in lines]
        failed = not events or "error" in events[-1] or events[-1].get("type") == "response.failed"
        return None if failed else self.streamed(events), answer


# ---- chat completions --------------------------------------------------------------------------

_CHAT_ENDS = {"tool_calls": "calls"}


def _chat_tool(name: str = "Read", **fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": SCHEMA, **fields}}


def _chat_choice(which: str) -> Any:
    if which in ("auto", "none", "required"):
        return which
    return {"type": "function", "function": {"name": which}}


def choices_of(events: Iterable[Event]) -> Mapping[int, Any]:
    """What the events of OpenAI's older APIs say, of which a whole answer is one."""
    found: dict[int, Any] = {}
    for part in [choice for event in events for choice in event["choices"]]:
        choice = found.setdefault(part["index"], defaultdict(list))
        assert not choice["finish"], "nothing follows the finish"
        said = part.get("delta") or part.get("message") or {"content": part.get("text")}
        for name in ("content", "reasoning_content"):
            choice[name] = [*choice[name], said.get(name) or ""]
        for call in said.get("tool_calls") or ():
            function = call["function"]
            if "id" in call:
                choice["calls"].append([call["id"], function["name"], function["arguments"]])
            else:
                assert call["index"] == len(choice["calls"]) - 1
                choice["calls"][-1][2] += function["arguments"]
        for name, entries in (part["logprobs"] or {}).items():
            if entries:
                choice[f"logprobs of {name}"] += entries
        for name in ("token_ids", "tokens"):
            choice[name] += part.get(name, [])
        choice["finish"] = part["finish_reason"]
    for choice in found.values():
        for name in ("content", "reasoning_content"):
            choice[name] = "".join(choice[name])
    return found


def _chat_said(events: Sequence[Event]) -> Said:
    [choice], [model] = choices_of(events).values(), {event["model"] for event in events}
    used = events[-1]["usage"]
    return Said(
        model,
        choice["content"],
        choice["reasoning_content"],
        [(name, _arguments(given)) for _, name, given in choice["calls"]],
        _CHAT_ENDS.get(choice["finish"], choice["finish"]),
        used["prompt_tokens"],
        used["prompt_tokens_details"]["cached_tokens"],
        used["completion_tokens"],
    )


CHAT = Api(
    name="chat",
    prompt="messages",
    limit="max_tokens",
    usage={"stream_options": {"include_usage": True}},
    tool=_chat_tool,
    choice=_chat_choice,
    effort=lambda effort: {"reasoning_effort": effort},
    form=lambda schema: {
        "response_format": {"type": "json_schema", "json_schema": {"name": "f", "schema": schema}}
    },
    whole=lambda answer: _chat_said([answer]),
    streamed=_chat_said,
)

# ---- messages ----------------------------------------------------------------------------------

_ENDS = {"end_turn": "stop", "stop_sequence": "stop", "max_tokens": "length", "tool_use": "calls"}


def _messages_tool(name: str = "Read", **fields: Any) -> dict[str, Any]:
    schema = fields.pop("parameters", SCHEMA)
    return {"name": name, "input_schema": schema, **fields}


def _messages_choice(which: str) -> Any:
    if which in ("auto", "none"):
        return {"type": which}
    return {"type": "any"} if which == "required" else {"type": "tool", "name": which}


def _messages_effort(effort: str) -> dict[str, Any]:
    off = {"thinking": {"type": "disabled"}}
    return off if effort == "none" else {"output_config": {"effort": effort}}


def _messages_whole(message: Event) -> Said:
    blocks, used = message["content"], message["usage"]
    cached = used["cache_read_input_tokens"]
    return Said(
        message["model"],
        "".join([block["text"] for block in blocks if block["type"] == "text"]),
        "".join([block["thinking"] for block in blocks if block["type"] == "thinking"]),
        [(block["name"], block["input"]) for block in blocks if block["type"] == "tool_use"],
        _ENDS[message["stop_reason"]],
        used["input_tokens"] + cached,
        cached,
        used["output_tokens"],
    )


def _messages_streamed(events: Sequence[Event]) -> Said:
    message = dict(events[0]["message"])
    blocks: list[Event] = []
    for event in events[1:]:
        if event["type"] == "content_block_start":
            blocks.append({**event["content_block"], "json": ""})
        elif event["type"] == "content_block_delta":
            for name, value in event["delta"].items():
                if name != "type":
                    name = "json" if name == "partial_json" else name
                    blocks[event["index"]][name] += value
        elif event["type"] == "message_delta":
            message |= {**event["delta"], "usage": event["usage"]}
    for block in blocks:
        if block["type"] == "tool_use":
            block["input"] = _arguments(block["json"])
    return _messages_whole({**message, "content": blocks})


MESSAGES = Api(
    name="messages",
    prompt="messages",
    limit="max_tokens",
    usage={},
    tool=_messages_tool,
    choice=_messages_choice,
    effort=_messages_effort,
    form=lambda schema: {"output_config": {"format": {"type": "json_schema", "schema": schema}}},
    whole=_messages_whole,
    streamed=_messages_streamed,
)

# ---- responses ---------------------------------------------------------------------------------


def _responses_tool(name: str = "Read", **fields: Any) -> dict[str, Any]:
    return {"type": "function", "name": name, "parameters": SCHEMA, **fields}


def _responses_choice(which: str) -> Any:
    return which if which in ("auto", "none", "required") else {"type": "function", "name": which}


def _responses_whole(response: Event) -> Said:
    texts = {"message": "", "reasoning": ""}
    calls = []
    for item in response["output"]:
        if item["type"] == "function_call":
            calls.append((item["name"], _arguments(item["arguments"])))
        else:
            texts[item["type"]] += "".join([part["text"] for part in item["content"]])
    done = "calls" if calls else "stop"
    used = response["usage"]
    return Said(
        response["model"],
        texts["message"],
        texts["reasoning"],
        calls,
        "length" if response["status"] == "incomplete" else done,
        used["input_tokens"],
        used["input_tokens_details"]["cached_tokens"],
        used["output_tokens"],
    )


def _responses_streamed(events: Sequence[Event]) -> Said:
    """What its deltas say; only status and usage are of the last event."""
    items: list[Event] = []
    for event in events:
        if event["type"] == "response.output_item.added":
            items.append({**event["item"], "content": [{"text": ""}]})
        elif event["type"] == "response.function_call_arguments.delta":
            items[event["output_index"]]["arguments"] += event["delta"]
        elif event["type"].endswith(".delta"):
            items[event["output_index"]]["content"][0]["text"] += event["delta"]
    return _responses_whole({**events[-1]["response"], "output": items})


RESPONSES = Api(
    name="responses",
    prompt="input",
    limit="max_output_tokens",
    usage={},
    tool=_responses_tool,
    choice=_responses_choice,
    effort=lambda effort: {"reasoning": {"effort": effort}},
    form=lambda schema: {
        "text": {"format": {"type": "json_schema", "name": "f", "schema": schema}}
    },
    whole=_responses_whole,
    streamed=_responses_streamed,
)

APIS = (CHAT, MESSAGES, RESPONSES)


def _arguments(text: str) -> Any:
    try:
        return json.loads(text or "{}")
    except ValueError:
        return {}
