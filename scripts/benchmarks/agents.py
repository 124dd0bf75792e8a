"""Coding agents: how many prompt tokens servers run in their sessions, and whether real ones work.

In a session, all servers get the same requests, one at a time and in turn, and give the same
answers; the tokens that a server ran of a prompt follow from its ``usage``. A real agent of
``agents.json`` has to write a file, which takes a tool call. The model's answers come from a
script. An agent that is missing on this machine is installed once by its package manager; if that
is missing, the agent is skipped, and its row says so.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.tokenizer_utils import load as load_tokenizer

import mlxgen
from mlxgen.server.clients import Served, configuration
from mlxgen.tokens import in_common

from . import kit, servers
from .architectures import configuration as configured
from .architectures import random_model, read
from .servers import Server

HERE = Path(__file__).parent
Message: TypeAlias = dict[str, Any]
Script: TypeAlias = Sequence[tuple[str, str]]


def figures() -> Iterator[kit.Figure]:
    for model in MODELS:
        yield from kit.guarded(model.name, _sessions(model))
    for agent in AGENTS:
        what = f"{agent.name} writes a file"
        if agent.needs != "pip" and shutil.which(agent.needs) is None:
            yield kit.Figure(what, f"skipped, as {agent.needs} is missing")
        else:
            yield from kit.guarded(what, _trial(what, agent))


def save_model(folder: Path, script: Script, inner: Message | None = None) -> Path:
    """A model that follows a script, with the demo model's tokenizer; its layers and caches are
    those of the configuration ``inner``, if given."""
    shutil.copytree(kit.DEMO, folder, ignore=shutil.ignore_patterns("*.safetensors", "config.json"))
    shutil.copy(HERE / "scripted_model.py", folder / "model.py")
    (folder / "script.json").write_text(json.dumps(script), encoding="utf-8")
    vocabulary = mlxgen.load().vocabulary
    size, weights = {"vocab_size": vocabulary.size}, {"layers.0.weight": mx.ones((1, 1))}
    if inner is not None:
        inner = {**inner, **size}
        shape = {name: value for name, value in inner.items() if name != "model_type"}
        found: Any = tree_flatten(random_model(inner["model_type"], **shape).parameters())
        weights |= {f"inner.{name}": array for name, array in found}
    config = {
        "model_type": "scripted",
        "model_file": "model.py",
        "folder": str(folder),
        **size,
        "eos_token_id": min(vocabulary.eos),
        "max_position_embeddings": 200_000,
        "inner": inner,
    }
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    mx.save_safetensors(str(folder / "model.safetensors"), weights)
    return folder


# ---- sessions ----------------------------------------------------------------------------------


class Model(NamedTuple):
    """A model to serve; ``most``: how many tokens may be run per new token."""

    name: str
    inner: Message | None
    most: float


MODELS = (
    Model("plain", None, 1.05),
    Model("windows", configured("gemma3_text", sliding_window=512), 1.15),
    Model("recurrent", configured("qwen3_next"), 1.15),
)
TURNS = 18
USER_EVERY = 6  # turns from one message of the user to the next
THOUGHT, SAID = "I need to see the file.", "I read it."
CALL = '<tool_call>\n{"name": "read", "arguments": {"path": "src/main.py"}}\n</tool_call>'
SCRIPT = [
    (r"<think>\n\n</think>\n\n$", f"{SAID}\n{CALL}"),
    ("", f"<think>\n{THOUGHT}\n</think>\n\n{SAID}\n{CALL}"),
]


def _sessions(model: Model) -> Iterator[kit.Figure]:
    """Two interleaved sessions, with a restart in the middle, on each server: ours, ours with a
    folder for prefixes, and mlx-lm's."""
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
        folder = save_model(place / "model", SCRIPT, model.inner)
        shutil.copy(HERE / "agent_template.jinja", folder / "chat_template.jinja")
        served = ("--model", str(folder), "--trust-remote-code")
        ours = (*served, "--draft", "off")  # the model gives the same at all places of a pass
        kept = (*ours, "--cache-dir", str(place / "cache"))
        memory, disk, peer = contenders = [
            Contender(stack.enter_context(Server("mlxgen", ours))),
            Contender(stack.enter_context(Server("mlxgen", kept)), remembers=True),
            Contender(stack.enter_context(Server("mlx_lm", served))),
        ]
        tokenizer: Any = load_tokenizer(folder)
        sessions = [Session(thinks, words_of(tokenizer)) for thinks in (True, False)]
        for turn in range(TURNS):
            if turn == TURNS // 2:
                for contender in contenders:
                    contender.restart()
            for session in sessions:
                session.turn(turn)
                first = turn % len(contenders)
                order = (*contenders[first:], *contenders[:first])
                answers = [each.answer(session, tokenizer) for each in order]
                session.messages.append(answers[0])
    what = f"{model.name}: prompt tokens run over new ones"
    yield kit.at_most(
        what, memory.over_new, model.most, f"{memory.told}; mlx_lm.server: {peer.told}"
    )
    what = f"{model.name}: the same with --cache-dir, where a restart makes nothing new"
    yield kit.at_most(what, disk.over_new, model.most, disk.told)
    what = f"{model.name}: sum of the times to the first token over mlx_lm.server's"
    yield kit.at_most(what, memory.waited / peer.waited, 1.0)
    yield kit.at_most(f"{what}, with --cache-dir", disk.waited / peer.waited, 1.0)


def new_tokens(prompt: list[int], seen: Sequence[list[int]]) -> int:
    """The number of a prompt's tokens after its longest common beginning with one seen before; at
    least one, since the last token must run to get logits."""
    return max(1, len(prompt) - max((in_common(prompt, other) for other in seen), default=0))


@dataclass(slots=True)
class Contender:
    """A server in its sessions, and the tokens and seconds that it took. ``remembers``: it keeps
    prefixes across a restart."""

    server: Server
    remembers: bool = False
    run: int = 0
    new: int = 0
    waited: float = 0.0
    seen: list[list[int]] = field(default_factory=list)

    def answer(self, session: Session, tokenizer: Any) -> Message:
        """Send the next request of a session, and count its tokens and seconds."""
        prompt = session.prompt(tokenizer)
        asked = self.server.ask(session.body(), "/v1/chat/completions")
        (message,), _, usage = servers.folded(asked.events)
        names = [call["function"]["name"] for call in message["tool_calls"]]
        told = (message["content"].strip(), message["reasoning_content"].strip(), names)
        expected = (SAID, THOUGHT if session.thinks else "", ["read"])
        if told != expected or usage["prompt_tokens"] != len(prompt):
            raise RuntimeError(f"{self.server.name} answers otherwise: {told}, {usage}")
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
        self.new += new_tokens(prompt, self.seen)
        self.run += len(prompt) - cached
        self.waited += asked.first
        said = SCRIPT[session.thinks][1]
        self.seen.append(prompt + list(tokenizer.encode(said, add_special_tokens=False)))
        return message

    def restart(self) -> None:
        """Stop the server as its operator would, and start it again."""
        self.server.stop()
        self.server.start()
        if not self.remembers:
            self.seen.clear()

    @property
    def over_new(self) -> float:
        return self.run / self.new

    @property
    def told(self) -> str:
        return f"{self.over_new:.3f} ({self.run:,} of {self.new:,})"


def words_of(tokenizer: Any) -> list[str]:
    """Words that are one token each."""
    found = (tokenizer.decode([token]) for token in range(tokenizer.vocab_size))
    return [text.strip() for text in found if re.fullmatch(r" [a-z]{2,}", text)]


class Session:
    """One agent, which waits for the answer to each request before it sends the next.

    If it ``thinks``, it sends the reasoning of answers back, and the template drops that of earlier
    answers as soon as the user speaks. If not, the template begins each answer with an empty
    reasoning that it leaves out of later prompts.
    """

    def __init__(self, thinks: bool, words: Sequence[str]) -> None:
        self.thinks, self._words = thinks, words
        self._chance = random.Random(0)  # the same for both: they share a system prompt and tools
        self.tools = [self._tool(name) for name in ("read", "write", "edit", "list", "search")]
        self.messages: list[Message] = [{"role": "system", "content": self._prose(1_200)}]
        self._chance = random.Random(f"{thinks}")

    def turn(self, number: int) -> None:
        """Add a message of the user, or the result of a tool."""
        if number % USER_EVERY == 0:
            text = self._prose(self._chance.randint(20, 80))
            self.messages.append({"role": "user", "content": text})
        else:
            call = self.messages[-1]["tool_calls"][0]["id"]
            text = self._prose(round(20 * 20 ** self._chance.random()))  # most results are short
            self.messages.append({"role": "tool", "tool_call_id": call, "content": text})

    def body(self) -> Message:
        """The body that a client of OpenAI's API sends."""
        return {
            "messages": self.messages,
            "tools": self.tools,
            "temperature": 0,
            "max_tokens": 200,
            "stream": True,
            "stream_options": {"include_usage": True},
            "chat_template_kwargs": {"enable_thinking": self.thinks},
        }

    def prompt(self, tokenizer: Any) -> list[int]:
        """The tokens of the request's prompt; templates take the arguments of calls as values."""
        messages = json.loads(json.dumps(self.messages))
        for call in (call for each in messages for call in each.get("tool_calls", ())):
            call["function"]["arguments"] = json.loads(call["function"]["arguments"])
        ids: list[int] = tokenizer.apply_chat_template(
            messages,
            tools=self.tools,
            add_generation_prompt=True,
            enable_thinking=self.thinks,
            return_dict=False,
        )
        return ids

    def _prose(self, count: int) -> str:
        return " ".join(self._chance.choices(self._words, k=count)) + "."

    def _tool(self, name: str) -> Message:
        keys = self._chance.choices(self._words, k=3)
        parameters = {key: {"type": "string", "description": self._prose(24)} for key in keys}
        function = {
            "name": name,
            "description": self._prose(60),
            "parameters": {"type": "object", "properties": parameters},
        }
        return {"type": "function", "function": function}


# ---- real agents -------------------------------------------------------------------------------

TASK = "Write the word hello into the file greeting.txt"
DONE = "The file is written."
MODEL = "scripted"
PATIENCE = 300  # seconds for one task
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "mlxgen-agents"


class Agent(NamedTuple):
    """One agent: its ``package`` of ``npm`` or ``pip``, its program's ``arguments``, and the
    ``call`` or the ``text`` by which the model writes the file; ``asides``: patterns of its other
    requests, with their answers. ``client``: the name of its configuration, which goes into the
    ``file``, with more ``settings``, or without a file into the environment."""

    name: str
    needs: str
    package: str
    arguments: Sequence[str]
    client: str
    call: Message = {}  # noqa: RUF012
    text: str = ""
    asides: Sequence[tuple[str, str]] = ()
    file: str = ""
    settings: Message = {}  # noqa: RUF012
    environment: dict[str, str] = {}  # noqa: RUF012

    def script(self, work: Path) -> Script:
        """The model's script for the folder ``work``."""
        call = json.dumps(self.call).replace("WORK", str(work))
        said = f"<think>\nA file.\n</think>\n\nI write it.\n<tool_call>\n{call}\n</tool_call>"
        return [("<tool_response>", DONE), *self.asides, ("", self.text or said)]


AGENTS = [Agent(**told) for told in read("agents")]


def _trial(what: str, agent: Agent) -> Iterator[kit.Figure]:
    """Let an agent do the task in an empty folder; on failure, the row says what went wrong."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder).resolve()
        home, work, written = place / "home", place / "work", place / "work" / "greeting.txt"
        home.mkdir()
        work.mkdir()
        program, model = _installed(agent), save_model(place / MODEL, agent.script(work))
        options = ("--model", str(model), "--trust-remote-code", "--draft", "off")
        with Server("mlxgen", options) as server:
            # Its own home, and no variables that lead elsewhere
            kept = {k: v for k, v in _bare().items() if not k.startswith(("ANTHROPIC", "OPENAI"))}
            kept |= {"HOME": str(home), "XDG_CONFIG_HOME": str(home / ".config")}
            ran = subprocess.run(
                [program, *(TASK if each == "TASK" else each for each in agent.arguments)],
                cwd=work,
                env={**kept, **_configured(agent, home, server.url)},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=PATIENCE,
            )
            right = written.exists() and written.read_text().strip() == "hello"
            if ran.returncode == 0 and right:
                yield kit.Figure(what, "done", "done", True)
            else:
                wrong = f"exit status {ran.returncode}\n{ran.stdout}\n{ran.stderr}\n"
                yield kit.Figure(what, wrong + server.logged(), "done", False)


def _bare() -> dict[str, str]:
    """The environment without the variables for our own processes."""
    return {k: v for k, v in os.environ.items() if k not in ("LD_PRELOAD", "PYTHONPATH")}


def _installed(agent: Agent) -> Path:
    """The program of an agent, installed once in a folder that is kept."""
    folder = CACHE / agent.name
    folder.mkdir(parents=True, exist_ok=True)
    bin = folder / ("node_modules/.bin" if agent.needs == "npm" else "bin")
    if not (bin / agent.name).exists():
        if agent.needs == "npm":
            manifest = {"private": True, "allowScripts": {agent.package: True}}
            (folder / "package.json").write_text(json.dumps(manifest), encoding="utf-8")
            command = ["npm", "install", "--no-audit", "--no-fund", "--loglevel=error"]
        else:
            subprocess.run([sys.executable, "-m", "venv", folder], check=True)
            command = [str(bin / "python"), "-m", "pip", "install", "--quiet"]
        command += [agent.package]
        subprocess.run(command, cwd=folder, env=_bare(), check=True, stdout=sys.stderr)
    return bin / agent.name


def _configured(agent: Agent, home: Path, url: str) -> dict[str, str]:
    """Write the configuration that ``--print-config`` prints; returns environment variables."""
    text = configuration(agent.client, Served(url, MODEL)).text
    variables = {k: value.replace("HOME", str(home)) for k, value in agent.environment.items()}
    if not agent.file:
        return {**dict(re.findall(r"(\w+)=(\S+)", text)), **variables}
    if agent.settings:
        text = json.dumps({**json.loads(text), **agent.settings})
    file = home / agent.file
    file.parent.mkdir(exist_ok=True)
    file.write_text(text, encoding="utf-8")
    return variables
