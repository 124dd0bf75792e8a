"""The agents: how each is installed, told of a server, and given a task; and what its model says.

The task is to write a file, which takes a call of a tool. What a model says is in the demo model's
format. An agent that is not on this machine is installed by its package manager.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from mlxgen.server.clients import Served, configuration

TASK = "Write the word hello into the file greeting.txt"
FILE, WORD = "greeting.txt", "hello"
DONE = "The file is written."
MODEL = "scripted"

Script: TypeAlias = Sequence[tuple[str, str]]
_CALLED = r"<tool_response>"


def _call(name: str, **arguments: Any) -> str:
    call = json.dumps({"name": name, "arguments": arguments})
    return f"<think>\nA file.\n</think>\n\nI write it.\n<tool_call>\n{call}\n</tool_call>"


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


def _bare() -> dict[str, str]:
    """The environment without what is meant for our own processes."""
    return {k: v for k, v in os.environ.items() if k not in ("LD_PRELOAD", "PYTHONPATH")}


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
        arguments=[
            "exec",
            "--skip-git-repo-check",
            "--dangerously-bypass-approvals-and-sandbox",
            TASK,
        ],
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
        arguments=[
            "--model",
            f"openai/{MODEL}",
            "--edit-format=diff",
            "--no-git",
            "--no-check-update",
            "--no-show-model-warnings",
            "--no-analytics",
            "--yes-always",
            "--message",
            TASK,
        ],
        script=lambda work: [("", f"I write it.\n\n{_BLOCK}")],
    ),
)


def is_there(needed: str) -> bool:
    """Whether a package manager is at hand."""
    return needed == "pip" or shutil.which(needed) is not None


def environment(home: Path, more: Mapping[str, str]) -> dict[str, str]:
    """The environment of an agent: a home of its own, and nothing that leads elsewhere."""
    kept = {k: v for k, v in _bare().items() if not k.startswith(("ANTHROPIC", "OPENAI"))}
    return {**kept, "HOME": str(home), "XDG_CONFIG_HOME": str(home / ".config"), **more}
