"""Coding agents: what servers run of the prompts of their sessions, and whether real ones work.

In a session, all servers get the same requests, one at a time and in turn, and give the same
answers; what a server ran of a prompt is what it says in ``usage``. A real agent has to write a
file, which takes a call of a tool. The model says what a script has it say. An agent that is not on
this machine is installed by its package manager, once; one whose package manager is missing is
skipped, and its row says so.
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
from collections.abc import Callable, Iterator, Sequence
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
from .architectures import random_model
from .servers import Server

HERE = Path(__file__).parent
CONTEXT = 200_000
Message: TypeAlias = dict[str, Any]
Script: TypeAlias = Sequence[tuple[str, str]]


def figures(scale: float) -> Iterator[kit.Figure]:
    for model in MODELS:
        yield from kit.guarded(model.name, _sessions(model, scale))
    for agent in AGENTS:
        what = f"{agent.name} writes a file"
        if agent.needs != "pip" and shutil.which(agent.needs) is None:
            yield kit.Figure(what, f"skipped, as {agent.needs} is missing")
        else:
            yield from kit.guarded(what, _trial(what, agent))


def save_model(folder: Path, script: Script, inner: Message | None = None) -> Path:
    """A model that follows a script, with the demo model's tokenizer; the layers and caches are
    those of the configuration ``inner``, if there is one."""
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
        "max_position_embeddings": CONTEXT,
        "inner": inner,
    }
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    mx.save_safetensors(str(folder / "model.safetensors"), weights)
    return folder


# ---- sessions ----------------------------------------------------------------------------------


class Model(NamedTuple):
    """A model to serve, and how many tokens may be run for each new one."""

    name: str
    inner: Message | None
    most: float


MODELS = (
    Model("plain", None, 1.05),
    Model("windows", configured("gemma3_text", sliding_window=512), 1.15),
    Model("recurrent", configured("qwen3_next"), 1.15),
)
TURNS = 18
SYSTEM, TOOLS = 12_000, 8_000  # words
TURN, ASKED = (200, 4_000), (200, 800)  # of a tool's result and of a question, by their logarithm
USER_EVERY = 6  # turns from one message of the user to the next
THOUGHT, SAID = "I need to see the file.", "I read it."
CALL = '<tool_call>\n{"name": "read", "arguments": {"path": "src/main.py"}}\n</tool_call>'
SCRIPT = [
    (r"<think>\n\n</think>\n\n$", f"{SAID}\n{CALL}"),
    ("", f"<think>\n{THOUGHT}\n</think>\n\n{SAID}\n{CALL}"),
]


def _sessions(model: Model, scale: float) -> Iterator[kit.Figure]:
    memory, folder, peer = replay(model, scale)
    what = f"{model.name}: prompt tokens run over new ones"
    text = f"{memory.account}; mlx_lm.server: {peer.account}"
    yield kit.at_most(what, memory.over_new, model.most, text)
    what = f"{model.name}: the same with --cache-dir, where a restart makes nothing new"
    yield kit.at_most(what, folder.over_new, model.most, folder.account)
    what = f"{model.name}: sum of the times to the first token over mlx_lm.server's"
    yield kit.at_most(what, memory.waited / peer.waited, 1.0)
    yield kit.at_most(f"{what}, with --cache-dir", folder.waited / peer.waited, 1.0)


@dataclass(slots=True)
class Contender:
    """A server in its sessions, and the tokens and seconds that it took. ``remembers``: what it has
    seen before a restart."""

    server: Server
    remembers: bool
    run: int = 0
    new: int = 0
    waited: float = 0.0
    seen: list[list[int]] = field(default_factory=list)

    def answer(self, session: Session, tokenizer: Any) -> Message:
        """Have the next request of a session answered, and account for it."""
        prompt = session.prompt(tokenizer)
        asked = self.server.ask(session.body(), "/v1/chat/completions")
        (message,), _, usage = servers.folded(asked.events)
        self.account_for(prompt, usage, asked.first)
        names = [call["function"]["name"] for call in message["tool_calls"]]
        told = (message["content"].strip(), message["reasoning_content"].strip(), names)
        expected = (SAID, THOUGHT if session.thinks else "", ["read"])
        if told != expected or usage["prompt_tokens"] != len(prompt):
            raise RuntimeError(f"{self.server.name} answers otherwise: {told}, {usage}")
        said = SCRIPT[session.thinks][1]
        self.seen.append(prompt + list(tokenizer.encode(said, add_special_tokens=False)))
        return message

    def account_for(self, prompt: list[int], usage: Message, first: float) -> None:
        """What is new of a prompt comes after the most that it has in common with one that was
        seen; its last token has to be run for what comes after it."""
        known = max((in_common(prompt, other) for other in self.seen), default=0)
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
        self.new += max(1, len(prompt) - known)
        self.run += len(prompt) - cached
        self.waited += first

    def restart(self) -> None:
        """Stop the server as its operator does, and start it again."""
        self.server.stop()
        self.server.start()
        if not self.remembers:
            self.seen.clear()

    @property
    def over_new(self) -> float:
        return self.run / self.new

    @property
    def account(self) -> str:
        return f"{self.over_new:.3f} ({self.run:,} of {self.new:,})"


def replay(model: Model, scale: float) -> list[Contender]:
    """Two sessions beside each other, with a restart in the middle, against each server: ours, ours
    with a folder, and mlx-lm's."""
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
        folder = save_model(place / "model", SCRIPT, model.inner)
        shutil.copy(HERE / "agent_template.jinja", folder / "chat_template.jinja")
        served = ("--model", str(folder), "--trust-remote-code")
        ours = (*served, "--draft", "off")  # the model says the same at all places of a pass
        kept = (*ours, "--cache-dir", str(place / "cache"))
        contenders = [
            Contender(stack.enter_context(Server("mlxgen", ours)), remembers=False),
            Contender(stack.enter_context(Server("mlxgen", kept)), remembers=True),
            Contender(stack.enter_context(Server("mlx_lm", served)), remembers=False),
        ]
        tokenizer: Any = load_tokenizer(folder)
        sessions = [Session(thinks, words_of(tokenizer), scale) for thinks in (True, False)]
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
    return contenders


def words_of(tokenizer: Any) -> list[str]:
    """Words that are a token each."""
    found = (tokenizer.decode([token]) for token in range(tokenizer.vocab_size))
    return [text.strip() for text in found if re.fullmatch(r" [a-z]{2,}", text)]


class Session:
    """One agent, which waits for the answer to each request before it makes the next.

    If it ``thinks``, the reasoning of answers is sent back, and the template drops that of earlier
    ones as soon as the user says something. If not, the template begins each answer with an empty
    reasoning that it leaves out of later prompts. The same scale makes the same requests.
    """

    def __init__(self, thinks: bool, words: Sequence[str], scale: float = 1.0) -> None:
        self.thinks, self._words, self._scale = thinks, words, scale
        self._chance = random.Random(0)  # alike for both: they share a system prompt and tools
        count = max(2, round(16 / scale**0.5))
        self.tools = [self._tool(number, round(TOOLS / scale / count)) for number in range(count)]
        system = {"role": "system", "content": self._prose(round(SYSTEM / scale))}
        self.messages: list[Message] = [system]
        self._chance = random.Random(f"{thinks}")

    def turn(self, number: int) -> None:
        """Add what the user says, or a tool returned."""
        is_asked = number % USER_EVERY == 0
        low, high = ASKED if is_asked else TURN
        factor: float = (high / low) ** self._chance.random()
        text = self._prose(max(8, round(low * factor / self._scale)))
        if is_asked:
            self.messages.append({"role": "user", "content": text})
        else:
            call = self.messages[-1]["tool_calls"][0]["id"]
            self.messages.append({"role": "tool", "tool_call_id": call, "content": text})

    def body(self) -> Message:
        """What a client of OpenAI's API sends."""
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
        """The tokens of the request's prompt: templates take the arguments of calls as values."""
        messages = json.loads(json.dumps(self.messages))
        for function in (
            call["function"] for each in messages for call in each.get("tool_calls", ())
        ):
            function["arguments"] = json.loads(function["arguments"])
        ids: list[int] = tokenizer.apply_chat_template(
            messages,
            tools=self.tools,
            add_generation_prompt=True,
            enable_thinking=self.thinks,
            return_dict=False,
        )
        return ids

    def _prose(self, count: int) -> str:
        chosen = self._chance.choices(self._words, k=count)
        lines = (" ".join(chosen[at : at + 40]) for at in range(0, count, 40))
        return ".\n".join(lines) + "."

    def _tool(self, number: int, count: int) -> Message:
        """The description of a tool, half of it for its parameters."""
        names = self._chance.choices(self._words, k=count // 2 // 48)
        of_each = {"type": "string", "description": self._prose(24)}
        function = {
            "name": f"tool{number}" if number else "read",
            "description": self._prose(count // 3),
            "parameters": {"type": "object", "properties": dict.fromkeys(names, of_each)},
        }
        return {"type": "function", "function": function}


# ---- real agents -------------------------------------------------------------------------------

TASK = "Write the word hello into the file greeting.txt"
FILE, WORD = "greeting.txt", "hello"
DONE = "The file is written."
MODEL = "scripted"
PATIENCE = 300  # seconds for one task
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "mlxgen-agents"


class Agent(NamedTuple):
    """One agent: its ``package`` of ``npm`` or ``pip``, what follows its program, and what the
    model says in the folder ``work``."""

    name: str
    needs: str
    package: str
    arguments: Sequence[str]
    script: Callable[[Path], Script]


TITLE = (r"(?i)generate a (short )?title|title generator", "A greeting")


def _calling(name: str, *others: tuple[str, str], **arguments: str) -> Callable[[Path], Script]:
    """Has a tool called, whose arguments may name the folder, until it has answered; ``others``:
    what else is asked for, and its answers."""

    def script(work: Path) -> Script:
        given = {key: text.replace("WORK", str(work)) for key, text in arguments.items()}
        call = json.dumps({"name": name, "arguments": given})
        said = f"<think>\nA file.\n</think>\n\nI write it.\n<tool_call>\n{call}\n</tool_call>"
        return [("<tool_response>", DONE), *others, ("", said)]

    return script


_BLOCK = f"{FILE}\n```\n<<<<<<< SEARCH\n=======\n{WORD}\n>>>>>>> REPLACE\n```\n"
_CODEX = "exec --skip-git-repo-check --dangerously-bypass-approvals-and-sandbox"
_AIDER = f"--model openai/{MODEL} --edit-format=diff --no-git --no-check-update --yes-always"
_AIDER += " --no-show-model-warnings --no-analytics --message"
AGENTS = (
    Agent(
        "claude",
        "npm",
        "@anthropic-ai/claude-code",
        ["--print", TASK, "--dangerously-skip-permissions"],
        _calling("Write", file_path=f"WORK/{FILE}", content=WORD),
    ),
    Agent(
        "codex",
        "npm",
        "@openai/codex",
        [*_CODEX.split(), TASK],
        _calling("exec_command", cmd=f"printf {WORD} > {FILE}"),
    ),
    Agent(
        "opencode",
        "npm",
        "opencode-ai",
        ["run", TASK],
        _calling("write", TITLE, filePath=f"WORK/{FILE}", content=WORD),
    ),
    Agent(
        "aider",
        "pip",
        "aider-chat",
        [*_AIDER.split(), TASK],
        lambda work: [("", f"I write it.\n\n{_BLOCK}")],
    ),
)


def _trial(what: str, agent: Agent) -> Iterator[kit.Figure]:
    with tempfile.TemporaryDirectory() as folder:
        wrong = trial(agent, Path(folder).resolve())
    yield kit.Figure(what, wrong or "done", "done", wrong is None)


def trial(agent: Agent, folder: Path) -> str | None:
    """Let an agent do the task in an empty folder; returns what went wrong, if anything did."""
    program = _installed(agent)
    home, work = folder / "home", folder / "work"
    home.mkdir()
    work.mkdir()
    model = save_model(folder / MODEL, agent.script(work))
    options = ("--model", str(model), "--trust-remote-code", "--draft", "off")
    with Server("mlxgen", options) as server:
        # A home of its own, and nothing that leads elsewhere
        kept = {k: v for k, v in _bare().items() if not k.startswith(("ANTHROPIC", "OPENAI"))}
        kept |= {"HOME": str(home), "XDG_CONFIG_HOME": str(home / ".config")}
        try:
            ran = subprocess.run(
                [program, *agent.arguments],
                cwd=work,
                env={**kept, **_configured(agent, home, server.url)},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=PATIENCE,
            )
        except subprocess.TimeoutExpired:
            return f"it did not end within {PATIENCE} s\n{server.logged()}"
        written = work / FILE
        if ran.returncode == 0 and written.exists() and written.read_text().strip() == WORD:
            return None
        return f"exit status {ran.returncode}\n{ran.stdout}\n{ran.stderr}\n{server.logged()}"


def _bare() -> dict[str, str]:
    """The environment without what is meant for our own processes."""
    return {k: v for k, v in os.environ.items() if k not in ("LD_PRELOAD", "PYTHONPATH")}


def _installed(agent: Agent) -> Path:
    """The program of an agent, in a folder that is kept."""
    folder = CACHE / agent.name
    folder.mkdir(parents=True, exist_ok=True)
    bin = {"npm": folder / "node_modules" / ".bin", "pip": folder / "bin"}[agent.needs]
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
    """Write what the server tells people to tell an agent; returns variables of its environment."""
    client = {"claude": "claude-code"}.get(agent.name, agent.name)
    text = configuration(client, Served(url, MODEL)).text
    match agent.name:
        case "codex":
            (home / ".codex").mkdir()
            (home / ".codex" / "config.toml").write_text(text, encoding="utf-8")
            return {"CODEX_HOME": str(home / ".codex")}
        case "opencode":
            allowed = {"edit": "allow", "external_directory": "allow"}
            settings = {**json.loads(text), "autoupdate": False, "permission": allowed}
            path = home / "opencode.json"
            path.write_text(json.dumps(settings), encoding="utf-8")
            return {"OPENCODE_CONFIG": str(path), "OPENCODE_DISABLE_MODELS_FETCH": "1"}
    # Claude Code asks no questions in a folder of its own, and nothing of anybody else
    quiet = {"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "IS_SANDBOX": "1"}
    return {**dict(re.findall(r"(\w+)=(\S+)", text)), **quiet}
