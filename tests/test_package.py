"""The package as it is shipped, and what the README promises of it."""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

import mlxgen
from mlxgen import errors

from .docs.pages import PAGES, README

ROOT = Path(__file__).parent.parent
VENDOR = "mlxgen/server/page/vendor"
LIBRARIES = json.loads((ROOT / VENDOR / "manifest.json").read_text(encoding="utf-8"))["files"]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def run_build(code: str, folder: Path) -> str:
    """The name of the file that the build backend writes into ``folder``."""
    command = [sys.executable, "-c", code, str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.split()[-1]


def test_all_names_what_is_exported_and_each_name_is_there() -> None:
    assert mlxgen.__all__ == sorted(mlxgen.__all__)
    for name in mlxgen.__all__:
        assert getattr(mlxgen, name) is not None
    assert dir(mlxgen) == mlxgen.__all__
    tree = {
        name
        for name, value in vars(errors).items()
        if inspect.isclass(value) and issubclass(value, Exception)
    }
    assert tree <= set(mlxgen.__all__)
    with pytest.raises(AttributeError, match="nothing_like_this"):
        _ = mlxgen.nothing_like_this

    assert mlxgen.__version__ == PROJECT["project"]["version"]
    code = "import mlxgen.load; from mlxgen.load import load; assert mlxgen.load is load"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_tests_that_compare_numbers_run_with_the_arithmetic_that_they_were_written_for() -> None:
    assert os.environ["MLX_ENABLE_TF32"] == "0"
    one = mx.full((64, 64), 1 + 2**-12, mx.float32)  # TF32 would round it to 1
    assert np.array_equal(np.array(one @ mx.eye(64)), np.array(one))


def test_commands_of_the_readme_exist_and_ci_runs_two_of_them() -> None:
    named = set(re.findall(r"^(?:\$ )?(scripts/\w+)", README.text, re.MULTILINE))
    assert {"scripts/run", "scripts/test", "scripts/check"} <= named
    for name in [*named, ".ci/run"]:
        assert (ROOT / name).stat().st_mode & 0o111, f"{name} cannot be executed"
    ci = (ROOT / ".ci" / "run").read_text().splitlines()
    assert ci[-2:] == ["scripts/check", "scripts/test --all"]
    mutants = (ROOT / "scripts" / "mutants.py").read_text(encoding="utf-8")
    for place in re.findall(r'"((?:mlxgen|tests)/[\w./]+)"', mutants):
        assert (ROOT / place).exists(), f"scripts/mutants.py names {place}"


def test_what_the_readme_and_the_pages_link_to_is_in_the_source_distribution(
    tmp_path: Path,
) -> None:
    build = "from hatchling.build import build_sdist; import sys; print(build_sdist(sys.argv[1]))"
    built = run_build(build, tmp_path)
    with tarfile.open(tmp_path / built) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {f"{VENDOR}/{name}" for name in LIBRARIES} <= names
    for page in PAGES:
        assert page.name in names
        for link in filter(None, (link.partition("#")[0] for link in page.links)):
            target = (page.path.parent / link).resolve().relative_to(ROOT).as_posix()
            assert target in names, f"{page}: {link}"


@pytest.mark.parametrize("kind", ["runtime", "dev", "mutants"])
def test_the_locks_pin_every_dependency_and_never_torch(kind: str) -> None:
    lines = (ROOT / "requirements" / f"{kind}.lock").read_text().splitlines()
    packages = [line for line in lines if line and not line.startswith("#")]
    assert all(re.match(r"[a-z0-9-]+==[\w.]+( ; .+)?$", line) for line in packages), "unpinned"
    names = {line.partition("==")[0] for line in packages}
    groups = PROJECT["dependency-groups"]
    wanted = list(groups.get(kind, []))
    if kind != "mutants":
        wanted += PROJECT["project"]["dependencies"] + groups["build"]
    assert {re.split(r"[\[><=;]", item)[0].strip() for item in wanted} <= names
    assert not names & {"torch", "tensorflow", "jax"}


def test_the_wheel_holds_the_package_and_its_data(tmp_path: Path) -> None:
    build = "from hatchling.build import build_wheel; import sys; print(build_wheel(sys.argv[1]))"
    built = run_build(build, tmp_path)
    with zipfile.ZipFile(tmp_path / built) as wheel:
        names = set(wheel.namelist())
        entry_points = next(name for name in names if name.endswith("entry_points.txt"))
        assert "mlxgen.generate = mlxgen.generate:main" in wheel.read(entry_points).decode()
    assert "mlxgen/py.typed" in names
    assert {f"{VENDOR}/{name}" for name in LIBRARIES} <= names
    licences = {name.partition("/licenses/")[2] for name in names}
    assert {f"{VENDOR}/{name}" for name in LIBRARIES if "LICENSE" in name} <= licences
    weights = ("model/model", "model/mtp", "draft/model")
    assert {f"mlxgen/demo/{name}.safetensors" for name in weights} <= names
    assert not any(name.startswith(("tests/", "scripts/")) for name in names)


def test_the_libraries_of_the_page_are_the_files_that_are_pinned() -> None:
    found = {
        path.relative_to(ROOT / VENDOR).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in (ROOT / VENDOR).glob("*/**/*")
        if path.is_file()
    }
    assert found == LIBRARIES, "run scripts/vendor_page"
