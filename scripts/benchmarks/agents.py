"""The sessions of coding agents against servers: what each of them runs of the prompts.

Owns the servers and the account of each request. Must never know a server's inside: what it ran of
a prompt is what it says in ``usage``. Invariant: all servers get the same requests, one at a time
and in turn, and give the same answers; that is checked.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from http.client import HTTPConnection
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from . import reciting, trials
from .alternate import Spread
from .figures import Figure, at_most, guarded
from .process import Server
from .sessions import Ask, Message, Seen, Session, side_by_side

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

ANSWER = 1200.0  # seconds
WINDOW = 512  # tokens


class Model(NamedTuple):
    """A model to serve, and how many tokens may be run for each new one."""

    name: str
    architecture: str
    shape: dict[str, Any]
    most: float


MODELS = (
    Model("plain", "llama", {}, 1.05),
    Model("windows", "gemma3_text", {"sliding_window": WINDOW}, 1.15),
    Model("recurrent", "qwen3_next", {}, 1.15),
)


def figures(scale: float) -> Iterator[Figure]:
    for model in MODELS:
        yield from guarded(model.name, _of(model, scale))
    yield from trials.figures()


def _of(model: Model, scale: float) -> Iterator[Figure]:
    memory, folder, peer = found = replay(model, scale)
    what = f"{model.name}: prompt tokens run over new ones"
    text = f"{memory.account}; mlx_lm.server: {peer.account}"
    yield at_most(what, memory.over_new, model.most, text)
    what = f"{model.name}: the same with --cache-dir, where a restart makes nothing new"
    yield at_most(what, folder.over_new, model.most, folder.account)
    text = f"{memory.lost:,}; mlx_lm.server: {peer.lost:,}"
    yield Figure(f"{model.name}: tokens that the restart makes new without it", text)
    what = f"{model.name}: sum of the times to the first token over mlx_lm.server's"
    ratio = memory.waited / peer.waited
    yield at_most(what, ratio, 1.0, f"{ratio:.2f}; request by request {found.waits()}")
    yield at_most(f"{what}, with --cache-dir", folder.waited / peer.waited, 1.0)


class Reply(NamedTuple):
    """An answer, the tokens of its prompt, and the seconds until it began."""

    message: Message
    prompt: int
    cached: int
    first: float


class Row(NamedTuple):
    """The tokens of a prompt, and how many of them were new, had never been seen, and were run."""

    name: str
    prompt: int
    new: int
    unseen: int
    run: int
    first: float


@dataclass
class Contender:
    """A server in its sessions. ``remembers``: what it has seen before a restart."""

    server: Server
    remembers: bool
    sessions: Sequence[Session]
    rows: list[Row] = field(default_factory=list)
    _seen: Seen = field(default_factory=Seen)
    _ever: Seen = field(default_factory=Seen)

    def answer(self, session: Session, ask: Ask, tokenizer: PreTrainedTokenizerFast) -> None:
        """Send a request, and account for it."""
        prompt = prompt_of(ask, tokenizer)
        said = reciting.answer(ask.thinks)[: ask.cut]
        reply = _sent(self.server, ask.body())
        if _words(reply.message) != _words_of("".join(said)) or reply.prompt != len(prompt):
            raise RuntimeError(f"{self.server.name} answers otherwise: {ask.name}, {reply}")
        unseen, new = self._ever.new(prompt), self._seen.new(prompt)
        run = reply.prompt - reply.cached
        self.rows.append(Row(ask.name, len(prompt), new, unseen, run, reply.first))
        tokens = tokenizer.encode("".join(said), add_special_tokens=False)
        for seen in (self._ever, self._seen):
            seen.add(prompt, tokens)
        if ask.is_turn:
            session.answered(reply.message)

    def restart(self) -> None:
        """Stop the server as its operator does, and start it again."""
        self.server.stop()
        self.server.start()
        if not self.remembers:
            self._seen.forget()

    @property
    def over_new(self) -> float:
        """Prompt tokens that were run over those that were new."""
        return sum(row.run for row in self.rows) / sum(row.new for row in self.rows)

    @property
    def account(self) -> str:
        """That in words."""
        run, new = sum(row.run for row in self.rows), sum(row.new for row in self.rows)
        return f"{run / new:.3f} ({run:,} of {new:,})"

    @property
    def lost(self) -> int:
        """Tokens that were new again after the restart."""
        return sum(row.new - row.unseen for row in self.rows)

    @property
    def waited(self) -> float:
        """Seconds until the first token, of all requests together."""
        return sum(row.first for row in self.rows)


class Replay(NamedTuple):
    """What came of the sessions with each server: ours, ours with a folder, and mlx-lm's."""

    memory: Contender
    disk: Contender
    peer: Contender

    def waits(self) -> Spread:
        """Seconds to the first token over mlx-lm's, request by request."""
        pairs = zip(self.memory.rows, self.peer.rows, strict=True)
        return Spread.of([ours.first / theirs.first for ours, theirs in pairs])


def replay(model: Model, scale: float) -> Replay:
    """Two sessions beside each other against each server, with a restart in the middle."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
        served = (
            "--model",
            str(reciting.save(folder / "model", model.architecture, **model.shape)),
        )
        servers = (
            Server("mlxgen", served),
            Server("mlxgen", (*served, "--cache-dir", str(folder / "cache"))),
            Server("mlx_lm", served),
        )
        contenders = [
            Contender(
                server,
                "--cache-dir" in server.arguments,
                [Session("thinking", True, scale), Session("not thinking", False, scale)],
            )
            for server in servers
        ]
        for contender in contenders:
            stack.callback(contender.server.stop)
            contender.server.start()
        _run(contenders, reciting.tokenizer())
    return Replay(*contenders)


def _run(contenders: Sequence[Contender], tokenizer: PreTrainedTokenizerFast) -> None:
    half = contenders[0].sessions[0].turns // 2
    restarted = False
    together = zip(*(side_by_side(each.sessions) for each in contenders), strict=True)
    for number, asks in enumerate(together):
        if asks[0][1].turn == half and not restarted:
            restarted = True
            for contender in contenders:
                contender.restart()
        turns = list(zip(contenders, asks, strict=True))
        first = number % len(turns)
        for contender, (session, ask) in (*turns[first:], *turns[:first]):
            contender.answer(session, ask, tokenizer)


def prompt_of(ask: Ask, tokenizer: PreTrainedTokenizerFast) -> list[int]:
    """The tokens of a request's prompt."""
    prompt: list[int] = tokenizer.apply_chat_template(
        [_spelled_out(message) for message in ask.messages],
        tools=ask.tools,
        add_generation_prompt=True,
        enable_thinking=ask.thinks,
        return_dict=False,
    )
    return prompt


def _sent(server: Server, body: dict[str, Any]) -> Reply:
    """Send a chat request and put its stream together."""
    message: Message = {"role": "assistant", "content": "", "reasoning_content": ""}
    calls: dict[int, Message] = {}
    usage: dict[str, Any] = {}
    first = 0.0
    connection = HTTPConnection("127.0.0.1", server.port, timeout=ANSWER)
    start = time.perf_counter()
    try:
        headers = {"Content-Type": "application/json"}
        connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
        response = connection.getresponse()
        if response.status != 200:
            raise RuntimeError(f"{server.name}: {response.status} {response.read()[:500]!r}")
        while line := response.readline():
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            usage = event.get("usage") or usage
            for choice in event.get("choices", ()):
                if added(choice["delta"], message, calls):
                    first = first or time.perf_counter() - start
    finally:
        connection.close()
    if calls:
        message["tool_calls"] = [calls[index] for index in sorted(calls)]
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
    return Reply(message, usage["prompt_tokens"], cached, first)


def added(delta: Message, message: Message, calls: dict[int, Message]) -> bool:
    """Add what an event brings; returns whether that is anything."""
    text = delta.get("content") or ""
    thought = delta.get("reasoning_content") or delta.get("reasoning") or ""
    message["content"] += text
    message["reasoning_content"] += thought
    for part in delta.get("tool_calls") or ():
        empty = {"id": "", "type": "function", "function": {"name": "", "arguments": ""}}
        call = calls.setdefault(part.get("index", 0), empty)
        call["id"] += part.get("id") or ""
        for name in ("name", "arguments"):
            call["function"][name] += part["function"].get(name) or ""
    return bool(text or thought or delta.get("tool_calls"))


def _spelled_out(message: Message) -> Message:
    """A message as templates take it: with the arguments of calls as values."""
    if "tool_calls" not in message:
        return message
    calls = [
        {**call, "function": {**each, "arguments": json.loads(each["arguments"])}}
        for call in message["tool_calls"]
        for each in [call["function"]]
    ]
    return {**message, "tool_calls": calls}


def _words(message: Message) -> tuple[list[str], list[str], bool]:
    """What was thought, and said, and whether a tool was called."""
    thought, said = message["reasoning_content"], message["content"]
    return thought.split(), said.split(), "tool_calls" in message


def _words_of(text: str) -> tuple[list[str], list[str], bool]:
    """The same of a text that was generated."""
    thought, _, said = text.removeprefix("<think>").rpartition("</think>")
    said, _, call = said.partition("<tool_call>")
    return thought.split(), said.split(), bool(call)
