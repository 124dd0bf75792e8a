"""What can be registered, and what a server does not start with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mlxgen import Checked
from mlxgen.errors import OptionError
from mlxgen.server.errors import RequestError
from mlxgen.server.fields import Named
from mlxgen.server.registry import Registry
from mlxgen.server.settings import Settings

from ..running import Running
from .conftest import HERE


def refusal(**settings: tuple[str, ...]) -> str:
    with pytest.raises(OptionError) as refused:
        Registry.of(Settings(**settings))  # type: ignore[arg-type]
    return str(refused.value)


@pytest.mark.parametrize(
    ("kind", "place", "reason"),
    [
        ("programs", "", "expected NAME=package.module:attribute, got 'it='"),
        ("programs", HERE, "expected NAME=package.module:attribute"),
        ("programs", "no.such.module:f", "no.such.module cannot be imported: ModuleNotFoundError"),
        ("programs", f"{HERE}:nothing", "there is no nothing in tests.server"),
        ("programs", f"{HERE}:NUMBER", "expected a function or a class, got 7"),
        ("programs", f"{HERE}:not_async", "write async def"),
        ("programs", f"{HERE}:no_guide", "its first parameter has to be for the guide"),
        ("programs", f"{HERE}:only_keywords", "its first parameter has to be for the guide"),
        ("programs", f"{HERE}:by_position", "remove the / after it"),
        ("programs", f"{HERE}:odd_type", "one of its types cannot come from JSON"),
        ("programs", f"{HERE}:unknown_type", "the type NoSuchType of its parameter text"),
        ("controllers", f"{HERE}:NotCalled", "expected a class with mid_process"),
        ("hooks", f"{HERE}:quiz", "write def instead of async def"),
        ("hooks", f"{HERE}:NotCalled", "expected a function, or a class with __call__"),
    ],
)
def test_what_cannot_be_used_is_refused_with_a_sentence(kind: str, place: str, reason: str) -> None:
    said = refusal(**{kind: (f"it={place}",)})
    assert said.startswith(f"{kind.removesuffix('s')}: ")
    assert reason in said


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ("it", "expected NAME=package.module:attribute or NAME=command, got 'it'"),
        ("=true", "expected NAME=package.module:attribute or NAME=command, got '=true'"),
        ("it=", "expected a command, got an empty string"),
        ("it='", "No closing quotation"),
        (f"it={HERE}:NUMBER", "expected a function, got 7"),
        (f"it={HERE}:nothing", "there is no nothing in tests.server"),
    ],
)
def test_a_check_that_cannot_be_used_is_refused_with_a_sentence(given: str, reason: str) -> None:
    said = refusal(checks=(given,))
    assert said.startswith("check: ")
    assert reason in said


def test_a_check_is_a_function_a_checked_or_a_command() -> None:
    own = (f"a={HERE}:short", f"b={HERE}:no_paris", "c=npx tsc --noEmit")
    registry = Registry.of(Settings(checks=own))

    def check(asked: str | Named) -> Checked:
        form = registry.checked(None, asked)
        assert form is not None and isinstance(form.spec, Checked)
        return form.spec

    found = [check(name) for name in ("a", "b", "c")]
    assert [(each.at, each.tries) for each in found] == [("\n", 4), (" ", 9), (None, 4)]
    strict = check(Named(name="a", arguments={"most": 3}))
    assert (found[0].check("four", ""), strict.check("four", "")) == (None, "4 letters")
    wrong: list[tuple[str, dict[str, Any], str]] = [
        ("a", {"most": "3"}, "check.arguments.most"),
        ("a", {"line": "3"}, "check.arguments.line"),
        ("c", {"strict": True}, "check.arguments.strict"),
        ("d", {}, "check.name"),
    ]
    for name, arguments, at in wrong:
        with pytest.raises(RequestError) as refused:
            check(Named(name=name, arguments=arguments))
        assert refused.value.param == at


def test_a_name_is_given_once_for_each_kind() -> None:
    place = f"it={HERE}:quiz"
    assert "it is named twice" in refusal(programs=(place, place))
    assert "it is named twice" in refusal(checks=("it=true", "it=false"))
    Registry.of(Settings(programs=(place,), hooks=(f"it={HERE}:never",)))


@pytest.mark.slow
def test_a_server_with_a_wrong_one_does_not_start() -> None:
    server = Running("--program", f"quiz={HERE}:quizz")
    assert server.end() == 2
    server.close()
    *_, line = server.log  # after what it was to load
    assert line == (
        f"mlxgen.server: error: --program: quiz={HERE}:quizz: there is no quizz in {HERE}"
    )


@pytest.mark.slow
def test_modules_of_the_working_folder_can_be_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine_alone.py").write_text("async def program(g): ...\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [path for path in __import__("sys").path if path])
    (found,) = Registry.of(Settings(programs=("it=mine_alone:program",))).everything
    assert found.name == "it"
