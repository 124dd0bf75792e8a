"""What can be said to the chat itself, and what comes of it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mlx_lm.models.cache import ArraysCache, KVCache, RotatingKVCache

from mlxgen.options.table import OPTIONS
from mlxgen.terminal.commands import completions

from ..fakes.chatting import FORGETFUL, TEMPLATE, THINK, THOUGHT, Chatter
from ..tables import table
from .conftest import Talking

pytestmark = pytest.mark.whole

CHATS = table("chats")
"""A chat a line: what is typed (``argv``, ``lines``, and whether a person is ``typing`` or wants
``colours``), the ``files`` beside it, what the model ``answers`` to all or some messages (else the
message in capitals; some ``thinks``, and its template ``forgets`` that, or ``adds`` something), the
kind of its ``cache``, how long its ``context`` is, what is ``recommended`` for it, and what comes
of it: what is ``shown``, patterns of what is ``noted``, how ``errors`` begin, what was ``said``,
what is ``SAVED`` in the end, the ``status``, how many tokens it ``ran``, and the tokens of the
``prompts``, and how many of them were cached, as ``--verbose`` says."""
SAVED = ("messages", "settings", "forms", "template")
CACHES: dict[str, Callable[[], list[Any]]] = {
    "plain": lambda: [KVCache()],
    "window": lambda: [RotatingKVCache(max_size=1000)],
    "recurrent": lambda: [ArraysCache(1)],
}


@pytest.mark.parametrize("case", CHATS, ids=[case["what"] for case in CHATS])
def test_a_chat_goes_as_it_should(
    case: dict[str, Any], talk: Talking, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in case.get("files", {}).items():
        (tmp_path / name).write_text(text)
    thinks, answers = case.get("thinks", False), case.get("answers", {})
    begins = f"{THINK}\nhm\n{THOUGHT}\n\n" if thinks else ""

    def answer(said: str) -> str:
        return answers if isinstance(answers, str) else answers.get(said, begins + said.upper())

    own: dict[str, Any] = {"max_context": case.get("context"), "thinks": thinks}
    own |= {"recommended": case["recommended"]} if "recommended" in case else {}
    template = FORGETFUL if case.get("forgets") else TEMPLATE
    own["template"] = template + case.get("adds", "")
    chatter = Chatter(answer, make_cache=CACHES[case.get("cache", "plain")], **own)
    how = {name: case[name] for name in ("argv", "typing", "colours") if name in case}
    done = talk(chatter.lm, *case["lines"], **how)
    for pattern in case.get("noted", ()):
        assert re.search(pattern, done.noted), pattern
    for error, expected in zip(done.errors, case.get("errors", ()), strict=True):
        assert error.startswith(expected)
    for name, text in case.get("files", {}).items():
        assert (tmp_path / name).read_text() == text
    assert not list(tmp_path.glob("*.part"))
    found = {"shown": done.shown, "status": done.status, "said": [list(e) for e in done.said]}
    found |= {name: done.saved.get(name) for name in SAVED}
    told = re.findall(r"prompt: +(\d+) tokens?(?: \((\d+) of them cached\))?", done.noted)
    found["prompts"] = [[int(tokens), int(cached or 0)] for tokens, cached in told]
    for name, value in (found | {"ran": chatter.ran()}).items():
        assert value == case.get(name, value), name


# ---- settings and forms ----


def test_every_option_can_be_set_or_says_what_to_do_instead(talk: Talking) -> None:
    lm = Chatter().lm
    for name in OPTIONS:
        done = talk(lm, f"/set {name} default")
        if done.errors:
            assert re.match(rf"{name}: .*(use|only|leave)", done.errors[0])
        else:
            assert done.noted.startswith(f"  {name} ")


# ---- files ----


def test_a_malformed_conversation_is_refused_with_its_file_and_changes_nothing(
    talk: Talking, tmp_path: Path
) -> None:
    malformed, nested = table("malformed_chats"), "[" * 100_000 + "]" * 100_000
    files = [tmp_path / f"{number}.json" for number in range(len(malformed))]
    for file, case in zip(files, malformed, strict=True):
        file.write_bytes(case["file"].replace("NESTED", nested).encode("latin-1"))
    done = talk(Chatter().lm, "one", "/set seed 3", *(f"/load {file}" for file in files))
    for error, file, case in zip(done.errors, files, malformed, strict=True):
        assert error.startswith("/load: ") and str(file) in error and case["says"] in error
    assert done.said == [("one", "ONE")] and done.saved["settings"] == {"seed": 3}


# ---- help ----


def test_help_lists_every_command_and_explains_each_and_quit_ends(talk: Talking) -> None:
    lm = Chatter().lm
    listed = talk(lm, "/help").noted
    lines = [line for line in listed.splitlines() if re.match(r"/(?!help COMMAND)", line)]
    names = [line[1:].split()[0] for line in lines]
    assert sorted(f"/{name} " for name in names) == sorted(completions("/"))
    assert "Ctrl-C" in listed
    assert max(len(line) for line in listed.splitlines()) < 80
    for name, line in zip(names, lines, strict=True):
        more = talk(lm, f"/help {name}").noted.splitlines()
        assert more[0] == line and len(more) > 1
    ended = talk(lm, "one", "/quit", "two")
    assert (ended.status, ended.shown, ended.saved) == (0, "ONE\n", {})
