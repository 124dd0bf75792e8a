"""What clients are told about a server: ``--print-config``."""

from __future__ import annotations

import json
import shlex
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from mlxgen.server.__main__ import main
from mlxgen.server.clients import CLIENTS, Served, configuration
from tests.fakes.checkpoints import write_checkpoint

from ..docs.pages import page

ODD = 'it\'s "a" model\\x \N{GRINNING FACE}'


def exports(text: str) -> dict[str, str]:
    """The variables that a shell script sets, and the words of what it runs."""
    *lines, last = text.splitlines()
    words = [word for line in lines for word in shlex.split(line)]
    found = {name: value for name, _, value in (word.partition("=") for word in words)}
    return {**found, "runs": " ".join(shlex.split(last))}


READ: Mapping[str, Callable[[str], Any]] = {
    "claude-code": exports,
    "codex": tomllib.loads,
    "opencode": json.loads,
    "aider": exports,
    "continue": yaml.safe_load,
    "zed": json.loads,
}


def values(found: Any) -> list[Any]:
    if isinstance(found, dict):
        return [*found, *(each for inner in found.values() for each in values(inner))]
    return (
        [each for inner in found for each in values(inner)] if isinstance(found, list) else [found]
    )


@pytest.mark.parametrize("client", CLIENTS)
def test_the_documentation_shows_what_is_printed(client: str) -> None:
    served = Served.at("127.0.0.1", 8080, model="mlx-community/Qwen3-4B-4bit")
    text = configuration(client, served).text
    assert any(block.code == text for block in page("docs/agents.md").all_blocks)


@pytest.mark.parametrize("client", CLIENTS)
def test_a_configuration_can_be_read_and_names_address_model_and_key(client: str) -> None:
    served = Served.at("0.0.0.0", 9000, path="/llm/", model=ODD, key="a'b$c")
    text = configuration(client, served).text
    found = [str(value) for value in values(READ[client](text))]
    assert any(value.startswith("http://127.0.0.1:9000/llm") for value in found)
    assert any(ODD in value for value in found)
    if client == "zed":
        assert "MLXGEN_API_KEY" in configuration(client, served).place
    elif client == "codex":
        assert "MLXGEN_API_KEY" in found and shlex.quote("MLXGEN_API_KEY=a'b$c")[16:] in text
    else:
        assert "a'b$c" in found


@pytest.mark.usefixtures("process_as_it_was")
def test_it_is_printed_instead_of_starting_a_server(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder = tmp_path / "my-model"
    folder.mkdir()
    line = ["--host", "::1", "--port", "81", "--model", str(folder), "--max-context", "999"]
    assert main([*line, "--print-config", "zed"]) == 0
    printed = capsys.readouterr()
    provider = json.loads(printed.out)["language_models"]["openai_compatible"]["mlxgen"]
    assert provider["api_url"] == "http://[::1]:81/v1"
    (model,) = provider["available_models"]
    assert (model["name"], model["max_tokens"]) == ("my-model", 999)
    assert printed.err.count("\n") == 1 and "settings.json" in printed.err
    assert main(["--print-config", "opencode"]) == 0
    assert json.loads(capsys.readouterr().out)["model"] == "mlxgen/demo"


@pytest.mark.usefixtures("process_as_it_was")
def test_of_several_models_clients_are_told_the_default(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_checkpoint(tmp_path / "owner" / "tiny")
    assert main(["--model-dir", str(tmp_path), "--print-config", "zed"]) == 0
    assert '"name": "owner/tiny"' in capsys.readouterr().out
