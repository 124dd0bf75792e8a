"""What runs on every push exists, and is what a contributor would run."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
WORKFLOW = ROOT / ".github" / "workflows" / "ci.yml"


def steps() -> list[dict[str, Any]]:
    (job,) = yaml.safe_load(WORKFLOW.read_text(encoding="utf-8"))["jobs"].values()
    found: list[dict[str, Any]] = job["steps"]
    return found


def test_checks_tests_and_the_benchmark_run_on_linux_and_apple_silicon() -> None:
    (job,) = yaml.safe_load(WORKFLOW.read_text(encoding="utf-8"))["jobs"].values()
    assert job["runs-on"] == "${{ matrix.os }}"
    assert {name.partition("-")[0] for name in job["strategy"]["matrix"]["os"]} == {
        "ubuntu",
        "macos",
    }
    text = " ".join(step.get("run", "") for step in steps())
    for command in ("scripts/check", "scripts/test", "scripts/bench single batch"):
        assert command in text
    assert "GITHUB_STEP_SUMMARY" in text


def test_every_script_of_it_exists_and_can_be_run() -> None:
    called = {name for step in steps() for name in re.findall(r"scripts/\w+", step.get("run", ""))}
    assert called
    assert all(os.access(ROOT / name, os.X_OK) for name in called)


def test_the_benchmark_knows_its_measurements() -> None:
    from benchmarks.__main__ import MEASUREMENTS

    (line,) = re.findall(r"scripts/bench ([a-z ]+) \|", str(steps()[-1]["run"]))
    assert set(line.split()) <= set(MEASUREMENTS)
