"""The commands of each page do what the page says."""

from __future__ import annotations

import json
import plistlib
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from configparser import ConfigParser
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from mlxgen import LanguageModel, generate, models
from mlxgen.server.settings import read_settings

from .. import processes
from ..server.running import Running
from .pages import PAGES, README, ROOT, Block, Page, page
from .shell import ADDRESS, GENERATE, SERVER, Command, commands, request_of, same_output

NOT_RUN = {
    r"^scripts/(test|check|bench|agents|lock)\b": "takes minutes, or asks the package registry",
    r"^MLXGEN_PICTURES=": "draws the pictures of the pages again",
    r"^python3 -m venv |^\.venv/bin/pip ": "installs packages",
    r"^\.venv/bin/python scripts/examples/": "tests/test_examples.py runs it",
    r"--model mlx-community/|--draft mlx-community/": "a hub model; its arguments are parsed",
    r"--model \./my-model": "a model of the reader's; likewise",
    r"^mlxgen\.models (get|rm)\b": "downloads and deletes; tests/test_models.py does, too",
    r"^(aider|claude)\b": "another program",
    r"^mlx\.(launch|distributed_config)\b": "several machines; tests/machines has two ranks",
}
"""Commands that do not run here, and why; those of our own programs are parsed all the same."""

WITH_COMMANDS = [page for page in PAGES if page.blocks("sh", "console")]


def all_commands(page: Page) -> list[tuple[Block, Command]]:
    blocks = page.blocks("sh", "console")
    return [(block, command) for block in blocks for command in commands(block)]


def is_run(command: Command) -> bool:
    return not any(re.search(pattern, command.text) for pattern in NOT_RUN)


def arguments_of(command: Command) -> list[str]:
    words = shlex.split(command.stages[-1], comments=True)
    return words[3:] if words[1:2] == ["-m"] else words[1:]


class Shell:
    """Runs the commands of one page; ``last`` is what the newest one printed."""

    def __init__(self, request: pytest.FixtureRequest, page: Page) -> None:
        self._request = request
        self._page = page
        self._own: Running | None = None
        self._capsys: pytest.CaptureFixture[str] = request.getfixturevalue("capsys")
        self._monkeypatch: pytest.MonkeyPatch = request.getfixturevalue("monkeypatch")

    def run(self, command: Command) -> str:
        if command.program in GENERATE:
            return self._generate(command)
        if command.program in SERVER:
            return self._serve(command)
        if command.program == "mlxgen.models":
            assert models.main(arguments_of(command)) == 0
            return self._capsys.readouterr().out
        if command.program == "curl":
            return self._request_answer(command.words)
        done = subprocess.run(["bash", "-ec", command.text], capture_output=True, text=True)
        assert done.returncode == 0, (command.text, done.stderr)
        return done.stdout

    def _generate(self, command: Command) -> str:
        *before, last = command.stages
        given = b""
        if before:
            feeding = " | ".join(before)
            given = subprocess.run(["bash", "-ec", feeding], capture_output=True, check=True).stdout
        Path(".stdin").write_bytes(given)  # a file, as text is only taken from what has an end
        with Path(".stdin").open(encoding="utf-8") as stdin:
            self._monkeypatch.setattr(sys, "stdin", stdin)
            return self._answer(last)

    def _answer(self, last: str) -> str:
        last, *notes = re.split(r" 2>(?=\w+$)", last)
        self._capsys.readouterr()
        status = generate.main(arguments_of(Command(last)))
        captured = self._capsys.readouterr()
        assert status == 0, (last, captured.err)
        for name in notes:
            Path(name).write_text(captured.err, encoding="utf-8")
        return captured.out

    def _serve(self, command: Command) -> str:
        settings = read_settings(arguments_of(command), {})
        assert not settings.models, "only the demo model runs"
        if settings.programs:
            for place in settings.programs:
                module, _, function = place.partition("=")[2].partition(":")
                code = self._page.function(function)
                Path(f"{module}.py").write_text(f"import mlxgen\n\n{code}", encoding="utf-8")
            self._own = Running(*arguments_of(command))
            self._request.addfinalizer(self._own.close)
            self._own.wait_ready()
        server = self._server
        return server.greeting.replace(server.url, ADDRESS)

    @property
    def _server(self) -> Running:
        shared: Running = self._request.getfixturevalue("server")
        return self._own or shared

    def _request_answer(self, words: Sequence[str]) -> str:
        server = self._server
        method, url, headers, data = request_of(list(words))
        assert url.startswith(ADDRESS)
        url = url.replace(ADDRESS, server.url)
        answer = httpx.request(method, url, headers=headers, content=data, timeout=60)
        assert answer.status_code == 200, answer.text
        return answer.text


@pytest.mark.parametrize("page", WITH_COMMANDS, ids=repr)
def test_commands_run_and_print_what_their_page_shows(
    page: Page, reader: Path, request: pytest.FixtureRequest
) -> None:
    shell = Shell(request, page)
    for block, command in all_commands(page):
        if is_run(command):
            printed = shell.run(command)
            if command.output:
                assert same_output(printed, command.output), f"{page}:{block.line} {command.text}"


def test_commands_that_are_not_run_are_ours_to_parse_and_listed_for_a_reason() -> None:
    left = [command for page in PAGES for _, command in all_commands(page) if not is_run(command)]
    for command in left:
        if command.program in GENERATE:
            generate.make_parser().parse_args(arguments_of(command))
        elif command.program in SERVER:
            read_settings(arguments_of(command), {})
        for script in re.findall(r"scripts/[\w/.]+", command.text):
            path = ROOT / script
            assert path.is_file() and (path.suffix or path.stat().st_mode & 0o111), script
    for pattern in NOT_RUN:
        assert any(re.search(pattern, command.text) for command in left), f"not needed: {pattern}"


def test_the_first_command_answers_its_question(lm: LanguageModel) -> None:
    question = re.search(r'^scripts/run "(.*)"$', README.text, re.MULTILINE)
    assert question is not None
    result = lm.generate([{"role": "user", "content": question[1]}])
    assert result.text.endswith("The capital of France is Paris.")


TRANSCRIPTS = [
    (each, block) for each in PAGES for block in each.blocks("console") if block.code[0] == ">"
]


@pytest.mark.parametrize(
    ("own", "block"), TRANSCRIPTS, ids=lambda each: str(getattr(each, "line", each))
)
def test_conversations_go_as_their_pages_show(own: Page, block: Block) -> None:
    typed = re.findall(r"^> (.*\n)", block.code, re.MULTILINE)
    command = ["-m", "mlxgen.generate", "--chat"]
    done = processes.run(command, "".join(typed), together=True)

    def told(text: str) -> list[str]:
        lines = (line.removeprefix("| ").strip() for line in text.splitlines())
        return [line for line in lines if line and not line.startswith(("> ", "mlxgen.generate: "))]

    shown, found = told(block.code), told(done.stdout)
    assert len(shown) == len(found), found
    for wanted, line in zip(shown, found, strict=True):
        pattern = re.escape(re.sub(r"\d+(\.\d+)?%", "0%", wanted)).replace(r"\.\.\.", ".*")
        assert re.fullmatch(pattern, re.sub(r"\d+(\.\d+)?%", "0%", line)), (wanted, line)


def test_the_first_requests_extract_what_was_asked_for_and_call_a_tool(server: Running) -> None:
    own = page("docs/server.md")
    asked = [command for _, command in all_commands(own) if command.program == "curl"]
    record, tool = (json.loads(request_of(command.words)[3] or "null") for command in asked[:2])

    def answer(body: dict[str, Any], **fields: Any) -> dict[str, Any]:
        whole = server.post("/v1/chat/completions", body | fields)
        assert whole.status_code == 200, whole.text
        message: dict[str, Any] = whole.json()["choices"][0]["message"]
        return message

    message = answer(record)
    assert json.loads(message["content"]) == {"name": "Maria", "age": 34, "city": "Lisbon"}
    assert f"`{message['content'].strip()}`" in own.text and message["reasoning_content"]
    for seed in range(4):
        again = answer(record, temperature=0.7, seed=seed)
        assert json.loads(again["content"]) == json.loads(message["content"])
    (call,) = answer(tool)["tool_calls"]
    assert call["function"]["name"] == "get_weather"
    assert json.loads(call["function"]["arguments"]) == {"city": "Oslo"}


@pytest.mark.slow
def test_the_program_of_a_request_gives_what_it_gives_in_python(
    reader: Path, request: pytest.FixtureRequest
) -> None:
    own = page("docs/controllers.md")
    shell = Shell(request, own)
    printed = [shell.run(command) for _, command in all_commands(own)]
    choices = json.loads(printed[-1])["choices"]
    (shown,) = [block.output for block in own.blocks("python") if block.output]
    assert shown.splitlines() == [
        choices[0]["value"],
        str(sorted(choice["message"]["content"] for choice in choices)),
    ]


def addresses(value: Any) -> list[str]:
    """Every address of the server in a configuration."""
    if isinstance(value, dict):
        return [found for inner in value.values() for found in addresses(inner)]
    if isinstance(value, list):
        return [found for inner in value for found in addresses(inner)]
    return [value] if isinstance(value, str) and value.startswith(ADDRESS) else []


def test_configurations_are_valid_and_name_addresses_that_answer(server: Running) -> None:
    read: dict[str, Any] = {"json": json.loads, "yaml": yaml.safe_load, "toml": tomllib.loads}
    read |= {"xml": lambda text: plistlib.loads(text.encode()), "ini": ConfigParser().read_string}
    for each in PAGES:
        for block in each.blocks(*read):
            for address in addresses(read[block.kind](block.code)):
                found = httpx.get(address.replace(ADDRESS, server.url) + "/models", timeout=60)
                assert found.status_code == 200, f"{each}:{block.line}"


def test_every_block_says_what_it_is() -> None:
    kinds = {"sh", "console", "python", "json", "yaml", "toml", "xml", "ini", "text"}
    for each in PAGES:
        assert {block.kind for block in each.all_blocks} <= kinds, each
