"""Settings, the command line, and what is written to the log."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from dataclasses import fields

import pytest

from mlxgen import generate
from mlxgen.arguments import ModelSettings
from mlxgen.errors import OptionError
from mlxgen.server.logs import JsonFormatter, TextFormatter, log, log_failure, logger
from mlxgen.server.settings import Settings, make_parser, read_settings


def test_the_defaults_of_the_command_line_are_those_of_the_settings() -> None:
    assert read_settings([], {}) == Settings()


def test_every_setting_is_an_option() -> None:
    known = {action.dest for action in make_parser()._actions} - {"help", "help_all", "version"}
    assert known == set(Settings.__dataclass_fields__)


def test_every_setting_says_what_it_is_in_both_places() -> None:
    told = " ".join((Settings.__doc__ or "").split())
    for action in make_parser()._actions:
        if action.dest not in ("help", "help_all", "version"):
            assert action.help, action.dest
            text = action.help.partition(" (default: ")[0]
            assert f"- {action.dest}: {text[0].upper()}{text[1:]}" in told


def test_both_commands_describe_the_model_alike(capsys: pytest.CaptureFixture[str]) -> None:
    told = []
    for parser in (make_parser(), generate.make_parser()):
        names = {field.name for field in fields(ModelSettings)}
        actions = [action for action in parser._actions if action.dest in names]
        assert len(actions) == len(names)
        told.append([(a.dest, a.help, a.metavar, a.choices, type(a)) for a in actions])
        with pytest.raises(SystemExit):
            parser.parse_args(["--version"])
        assert ", mlx-lm 0." in capsys.readouterr().out
    assert told[0] == told[1]


def test_options_become_settings() -> None:
    line = "--model m --port 0 --max-batch 4 --cache-bytes 2GiB --cors-origin * --cors-origin null"
    settings = read_settings(line.split(), {"MLXGEN_API_KEY": "from-environment"})
    assert settings == Settings(
        models=("m",),
        port=0,
        max_batch=4,
        cache_bytes=2 << 30,
        cors_origins=("*", "null"),
        api_keys=("from-environment",),
    )
    given = ["--api-key", "given", "--api-key", "too"]
    assert read_settings(given, {"MLXGEN_API_KEY": "x"}).api_keys == ("given", "too")
    assert read_settings([], {"MLXGEN_API_KEY": "x y"}).api_keys == ("x", "y")
    assert read_settings([], {"MLXGEN_API_KEY": ""}).api_keys == ()


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("--port 70000", "--port: expected an integer from 0 to 65,535, got 70000"),
        ("--port x", "argument --port: invalid int value: 'x'"),
        ("--max-batch 0", "--max-batch: expected an integer from 1 to 4,096, got 0"),
        ("--cache-bytes lots", "expected a size such as 1000000, 512MB or 2GiB, got 'lots'"),
        ("--cache-bytes 1", "an integer from 1,048,576 to 1,125,899,906,842,624, got 1"),
        (
            "--request-timeout nan",
            "--request-timeout: expected a number from 0 to 10,000,000, got nan",
        ),
        ("--shutdown-grace -1", "--shutdown-grace: expected a number from 0 to 10,000,000, got -1"),
        ("--cors-origin localhost", "or *, got 'localhost'"),
        ("--cors-origin http://a/b", "or *, got 'http://a/b'"),
        ("--api-key ä", "printable ASCII"),
        ("--host=", "--host: is empty"),
        ("--max-context 1", "--max-context: expected an integer from 2 to "),
        ("--log-format xml", "invalid choice"),
        ("--alias=", "--alias: expected a name of 1 to 256 characters, got ''"),
        ("--kv-bits 7", "--kv-bits: expected 2, 3, 4, 5, 6 or 8, got 7"),
        ("--nonsense", "unrecognized arguments"),
        ("--prot=1", "--prot=1; did you mean --port?"),
    ],
)
def test_a_wrong_option_is_one_line_and_status_2(
    line: str, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        read_settings(line.split(), {})
    assert caught.value.code == 2
    said = capsys.readouterr().err
    assert reason in said
    assert said.count("\n") == 1


def test_settings_made_by_programs_are_checked_too() -> None:
    with pytest.raises(OptionError, match=r"max_queue: expected .* got 0"):
        Settings(max_queue=0)


@pytest.fixture
def records() -> Iterator[list[logging.LogRecord]]:
    found: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = found.append  # type: ignore[method-assign, assignment]
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield found
    logger.removeHandler(handler)
    logger.setLevel(before)


def test_both_formats_are_one_line_for_each_message(records: list[logging.LogRecord]) -> None:
    log(logging.INFO, "a\nb", name="x y", seconds=0.12345, rows=2)
    text = TextFormatter().format(records[0])
    assert text.endswith('info: a\\nb name="x y" seconds=0.123 rows=2')
    entry = json.loads(JsonFormatter().format(records[0]))
    assert entry["message"] == "a\nb"
    assert (entry["level"], entry["name"], entry["rows"]) == ("info", "x y", 2)


def test_what_an_exception_says_is_only_logged_when_debugging(
    records: list[logging.LogRecord],
) -> None:
    try:
        raise ValueError("quotes a secret prompt")
    except ValueError as error:
        log_failure("it failed", error)
        assert "secret" not in TextFormatter().format(records[0])
        assert "error=ValueError" in TextFormatter().format(records[0])
        assert "test_settings.py" in JsonFormatter().format(records[0])
        logger.setLevel(logging.DEBUG)
        log_failure("it failed", error)
        assert "secret" in TextFormatter().format(records[1])


def test_hosts_are_allowed_by_name() -> None:
    given = ["--allow-host", "box.local", "--allow-host", "a_1"]
    assert read_settings(given, {}).allow_hosts == ("box.local", "a_1")
    for wrong in ("http://box.local", "box.local:80", "*", "", "a b", "a..b", "/"):
        with pytest.raises(OptionError, match="allow_host"):
            Settings(allow_hosts=(wrong,))
