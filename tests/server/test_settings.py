"""The command line: what it means, and what a server does not start with."""

from __future__ import annotations

import json
import logging
import shlex
from pathlib import Path

import pytest

from mlxgen.errors import OptionError
from mlxgen.server.__main__ import main
from mlxgen.server.logs import JsonFormatter, TextFormatter
from mlxgen.server.settings import Settings, make_parser, read_settings
from tests.fakes.checkpoints import write_checkpoint

from .exchanges import lines
from .inside import settings_of, write_letter_adapter

OWN = "tests.server.own_code"


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two models, another of the same name, an adapter, and a folder without any."""
    root = tmp_path_factory.mktemp("shelf")
    for name in ("models/tiny", "models/owner/small", "other/tiny"):
        write_checkpoint(root / name)
    write_letter_adapter(root, "x")
    (root / "notes").mkdir()
    (root / "notes" / "file").write_text("mine")
    return root


def refused(line: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """What a server says that does not start with these options."""
    own = [] if "--port" in line or "--print-config" in line else ["--port", "0"]
    try:
        status: object = main([*own, *line.split(" ")])
    except SystemExit as error:
        status = error.code
    said = capsys.readouterr()
    assert status == 2 and said.out == "" and "Traceback" not in said.err
    return said.err.splitlines()


@pytest.mark.usefixtures("process_as_it_was")
@pytest.mark.parametrize("case", lines("refused_starts"), ids=lambda case: case["line"])
def test_a_wrong_option_is_one_line_and_status_2(
    case: dict[str, str], shelf: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = case["line"].replace("@own", OWN).replace("@", str(shelf))
    [said] = [each for each in refused(line, capsys) if "error:" in each]
    assert said.startswith("mlxgen.server: error: ") and case["said"] in said
    assert (shelf / "notes" / "file").read_text() == "mine"


@pytest.mark.usefixtures("process_as_it_was")
@pytest.mark.parametrize("key", ["", " --api-key k"])
def test_an_open_door_is_warned_of(key: str, capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(f"--host 0.0.0.0 --model ./not/here{key}", capsys)
    assert any("--api-key" in line for line in said) is not bool(key)


def test_options_become_settings() -> None:
    for case in lines("settings"):
        found = read_settings(shlex.split(case["line"]), case.get("environment", {}))
        assert found == Settings(**settings_of(case["settings"])), case


def test_settings_made_by_programs_are_checked_too() -> None:
    with pytest.raises(OptionError, match=r"max_queue: expected .* got 0"):
        Settings(max_queue=0)


def test_every_setting_is_an_option_and_says_what_it_is_in_both_places() -> None:
    told = " ".join((Settings.__doc__ or "").split())
    known = set()
    for action in make_parser()._actions:
        if action.dest not in ("help", "help_all", "version"):
            known.add(action.dest)
            text = (action.help or "").partition(" (default: ")[0]
            assert f"- {action.dest}: {text[0].upper()}{text[1:]}" in told
    assert known == set(Settings.__dataclass_fields__)


def test_both_formats_of_the_log_are_one_line_for_each_message() -> None:
    told = {"name": "x y", "seconds": 0.12345, "rows": 2}
    record = logging.makeLogRecord({"msg": "a\nb", "levelname": "INFO", "fields": told})
    assert TextFormatter().format(record).endswith('info: a\\nb name="x y" seconds=0.123 rows=2')
    entry = json.loads(JsonFormatter().format(record))
    assert (entry["message"], entry["level"], entry["rows"]) == ("a\nb", "info", 2)
