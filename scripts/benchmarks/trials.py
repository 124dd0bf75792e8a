"""Real coding agents against ``mlxgen.server``: whether each of them writes a file.

The task takes a call of a tool, and the model says what a script has it say, in the demo model's
format. An agent that is not on this machine is installed by its package manager, once; one whose
package manager is missing is skipped, and its row says so.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TypeAlias

import mlx.core as mx

import mlxgen
from mlxgen.server.clients import Served, configuration

from .figures import Figure, guarded
from .process import Server

TASK = "Write the word hello into the file greeting.txt"
FILE, WORD = "greeting.txt", "hello"
DONE = "The file is written."
MODEL = "scripted"
CONTEXT = 200_000
PATIENCE = 300  # seconds for one task
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "mlxgen-agents"

Script: TypeAlias = Sequence[tuple[str, str]]
_CALLED = r"<tool_response>"


def figures() -> Iterator[Figure]:
    for agent in AGENTS:
        what = f"{agent.name} writes a file"
        if agent.needs != "pip" and shutil.which(agent.needs) is None:
            yield Figure(what, f"skipped, as {agent.needs} is missing")
            continue
        yield from guarded(what, _tried(what, agent))


def _tried(what: str, agent: Agent) -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        wrong = trial(agent, Path(folder).resolve())
    yield Figure(what, wrong or "done", "done", wrong is None)


def trial(agent: Agent, folder: Path) -> str | None:
    """Let an agent do the task in an empty folder; returns what went wrong, if anything did."""
    cache = CACHE / agent.name
    cache.mkdir(parents=True, exist_ok=True)
    program = agent.install(cache)
    home, work = folder / "home", folder / "work"
    home.mkdir()
    work.mkdir()
    model = save_model(folder / MODEL, agent.script(work))
    options = ("--model", str(model), "--trust-remote-code", "--draft", "off")
    with Server("mlxgen", options) as server:
        try:
            ran = subprocess.run(
                [program, *agent.arguments],
                cwd=work,
                env=_environment(home, agent.configure(home, server.url)),
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


def save_model(folder: Path, script: Script) -> Path:
    """A model that follows a script, with the demo model's tokenizer and chat template."""
    demo = Path(str(resources.files("mlxgen"))) / "demo" / "model"
    shutil.copytree(demo, folder, ignore=shutil.ignore_patterns("*.safetensors", "config.json"))
    shutil.copy(Path(__file__).with_name("scripted_model.py"), folder / "model.py")
    (folder / "script.json").write_text(json.dumps(script), encoding="utf-8")
    vocabulary = mlxgen.load().vocabulary
    config = {
        "model_type": "scripted",
        "model_file": "model.py",
        "folder": str(folder),
        "vocab_size": vocabulary.size,
        "eos_token_id": min(vocabulary.eos),
        "max_position_embeddings": CONTEXT,
    }
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    mx.save_safetensors(str(folder / "model.safetensors"), {"layers.0.weight": mx.ones((1, 1))})
    return folder


# ---- the agents --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """One agent.

    ``install`` puts it into a folder and returns its program; ``configure`` writes what it has to
    know of a server at ``url`` into its ``home``, and returns variables of its environment;
    ``arguments`` follow the program, and ``script`` is what the model says in the folder ``work``.
    """

    name: str
    needs: str
    install: Callable[[Path], Path]
    configure: Callable[[Path, str], Mapping[str, str]]
    arguments: Sequence[str]
    script: Callable[[Path], Script]


def _call(name: str, **arguments: str) -> str:
    call = json.dumps({"name": name, "arguments": arguments})
    return f"<think>\nA file.\n</think>\n\nI write it.\n<tool_call>\n{call}\n</tool_call>"


def _bare() -> dict[str, str]:
    """The environment without what is meant for our own processes."""
    return {k: v for k, v in os.environ.items() if k not in ("LD_PRELOAD", "PYTHONPATH")}


def _environment(home: Path, more: Mapping[str, str]) -> dict[str, str]:
    """The environment of an agent: a home of its own, and nothing that leads elsewhere."""
    kept = {k: v for k, v in _bare().items() if not k.startswith(("ANTHROPIC", "OPENAI"))}
    return {**kept, "HOME": str(home), "XDG_CONFIG_HOME": str(home / ".config"), **more}


def _npm(package: str, program: str) -> Callable[[Path], Path]:
    def install(folder: Path) -> Path:
        found = folder / "node_modules" / ".bin" / program
        if not found.exists():
            manifest = {"private": True, "allowScripts": {package: True}}
            (folder / "package.json").write_text(json.dumps(manifest), encoding="utf-8")
            command = ["npm", "install", "--no-audit", "--no-fund", "--loglevel=error", package]
            subprocess.run(command, cwd=folder, env=_bare(), check=True, stdout=sys.stderr)
        return found

    return install


def _pip(package: str, program: str) -> Callable[[Path], Path]:
    def install(folder: Path) -> Path:
        found = folder / "bin" / program
        if not found.exists():
            subprocess.run([sys.executable, "-m", "venv", folder], check=True)
            command = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", package]
            subprocess.run(command, env=_bare(), check=True, stdout=sys.stderr)
        return found

    return install


def _claude(home: Path, url: str) -> Mapping[str, str]:
    return {
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_API_KEY": "none",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "IS_SANDBOX": "1",  # it asks no questions, in a folder of its own
    }


def _codex(home: Path, url: str) -> Mapping[str, str]:
    settings = home / ".codex"
    settings.mkdir()
    text = configuration("codex", Served(url, MODEL)).text
    (settings / "config.toml").write_text(text, encoding="utf-8")
    return {"CODEX_HOME": str(settings)}


def _opencode(home: Path, url: str) -> Mapping[str, str]:
    settings = {
        **json.loads(configuration("opencode", Served(url, MODEL)).text),
        "autoupdate": False,
        "permission": {"edit": "allow", "external_directory": "allow"},
    }
    path = home / "opencode.json"
    path.write_text(json.dumps(settings), encoding="utf-8")
    return {"OPENCODE_CONFIG": str(path), "OPENCODE_DISABLE_MODELS_FETCH": "1"}


def _aider(home: Path, url: str) -> Mapping[str, str]:
    return {"OPENAI_API_BASE": f"{url}/v1", "OPENAI_API_KEY": "none"}


_BLOCK = f"{FILE}\n```\n<<<<<<< SEARCH\n=======\n{WORD}\n>>>>>>> REPLACE\n```\n"
_AIDER = f"--model openai/{MODEL} --edit-format=diff --no-git --no-check-update --yes-always"
_AIDER += " --no-show-model-warnings --no-analytics --message"
_CODEX = "exec --skip-git-repo-check --dangerously-bypass-approvals-and-sandbox"

AGENTS = (
    Agent(
        name="claude",
        needs="npm",
        install=_npm("@anthropic-ai/claude-code", "claude"),
        configure=_claude,
        arguments=["--print", TASK, "--dangerously-skip-permissions"],
        script=lambda work: [
            (_CALLED, DONE),
            ("", _call("Write", file_path=str(work / FILE), content=WORD)),
        ],
    ),
    Agent(
        name="codex",
        needs="npm",
        install=_npm("@openai/codex", "codex"),
        configure=_codex,
        arguments=[*_CODEX.split(), TASK],
        script=lambda work: [
            (_CALLED, DONE),
            ("", _call("exec_command", cmd=f"printf {WORD} > {FILE}")),
        ],
    ),
    Agent(
        name="opencode",
        needs="npm",
        install=_npm("opencode-ai", "opencode"),
        configure=_opencode,
        arguments=["run", TASK],
        script=lambda work: [
            (_CALLED, DONE),
            (r"(?i)generate a (short )?title|title generator", "A greeting"),
            ("", _call("write", filePath=str(work / FILE), content=WORD)),
        ],
    ),
    Agent(
        name="aider",
        needs="pip",
        install=_pip("aider-chat", "aider"),
        configure=_aider,
        arguments=[*_AIDER.split(), TASK],
        script=lambda work: [("", f"I write it.\n\n{_BLOCK}")],
    ),
)
