"""``scripts/agents``: lets each agent write a file, and says which of them did.

Exit status 1 if one of them did not; one whose package manager is missing is skipped with a note.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .agents import AGENTS, FILE, WORD, Agent, environment, is_there

PATIENCE = 300  # seconds for one task
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "mlxgen-agents"


@contextmanager
def serving(script: Path, log: Path, records: Path | None) -> Iterator[str]:
    """The address of a server that follows a script, until the end of the context."""
    recording = {} if records is None else {"MLXGEN_RECORD": str(records)}
    command = [
        sys.executable,
        "-m",
        "scripts.agent_trials.scripted",
        "--port",
        "0",
        "--alias",
        "scripted",
    ]
    with log.open("w", encoding="utf-8") as errors:
        server = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={**os.environ, "MLXGEN_SCRIPT": str(script), **recording},
        )
        try:
            assert server.stdout is not None
            line = server.stdout.readline()
            if "ready on " not in line:
                raise SystemExit(f"the server did not start: {log.read_text(encoding='utf-8')}")
            yield line.split("ready on ")[1].split(",")[0]
        finally:
            server.terminate()
            server.wait()


def trial(agent: Agent, folder: Path, records: Path | None) -> str | None:
    """Let an agent do the task in an empty folder; returns what went wrong, if anything did."""
    if records is not None:
        records.mkdir(parents=True, exist_ok=True)
    cache = CACHE / agent.name
    cache.mkdir(parents=True, exist_ok=True)
    program = agent.install(cache)
    home, work = folder / "home", folder / "work"
    home.mkdir()
    work.mkdir()
    script, log = folder / "script.json", (records or folder) / "server.log"
    script.write_text(json.dumps(agent.script(work)), encoding="utf-8")
    with serving(script, log, records) as url:
        try:
            ran = subprocess.run(
                [program, *agent.arguments],
                cwd=work,
                env=environment(home, agent.configure(home, url)),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=PATIENCE,
            )
        except subprocess.TimeoutExpired:
            return f"it did not end within {PATIENCE} s\n{log.read_text(encoding='utf-8')}"
    written = work / FILE
    if ran.returncode == 0 and written.exists() and written.read_text().strip() == WORD:
        return None
    said = f"exit status {ran.returncode}\n{ran.stdout}\n{ran.stderr}"
    return f"{said}\n{log.read_text(encoding='utf-8')}"


def main() -> int:
    names = [agent.name for agent in AGENTS]
    parser = argparse.ArgumentParser(prog="scripts/agents", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(names))
    parser.add_argument(
        "--record",
        type=Path,
        metavar="FOLDER",
        help="write what each agent sends, and the server's log, into a folder of its name there",
    )
    arguments = parser.parse_args()
    wanted = arguments.names or names
    if unknown := set(wanted) - set(names):
        parser.error(f"there is no {', '.join(sorted(unknown))}; expected {', '.join(names)}")
    failed = False
    for agent in AGENTS:
        if agent.name not in wanted:
            continue
        if not is_there(agent.needs):
            print(f"{agent.name}: skipped, as {agent.needs} is missing")
            continue
        with tempfile.TemporaryDirectory() as folder:
            records = arguments.record and (arguments.record / agent.name).resolve()
            wrong = trial(agent, Path(folder).resolve(), records)
        print(f"{agent.name}: {'done' if wrong is None else f'failed: {wrong}'}", flush=True)
        failed = failed or wrong is not None
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
