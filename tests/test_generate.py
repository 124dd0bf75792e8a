"""The command line: what goes where, and the exit status."""

from __future__ import annotations

import inspect
import io
import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import mlxgen
from mlxgen.generate import main, make_parser

from . import processes
from .fakes.checkpoints import write_checkpoint
from .fakes.seeing import asking, png, seeing
from .tables import table

DEMO = ["-m", "mlxgen.generate"]
QUIET = ("--chat-template-args", '{"enable_thinking": false}')


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    def roomy(model: object, config: dict[str, Any]) -> None:
        config["max_position_embeddings"] = 1_000_000

    return write_checkpoint(tmp_path_factory.mktemp("models") / "tiny", change=roomy)


@pytest.fixture(scope="module")
def loaded(folder: Path) -> mlxgen.LanguageModel:
    return mlxgen.load(folder)


@pytest.fixture
def lm(loaded: mlxgen.LanguageModel, monkeypatch: pytest.MonkeyPatch) -> mlxgen.LanguageModel:
    """What the command line loads in this test, whatever its arguments say."""
    monkeypatch.setattr(sys.modules["mlxgen.load"], "load", lambda *args, **options: loaded)
    return loaded


def ended(text: str) -> str:
    """A text as it is printed: with a line end behind it."""
    return text if not text or text.endswith("\n") else text + "\n"


class Outcome(NamedTuple):
    status: int
    out: str
    err: str

    def is_refusal(self, message: str) -> bool:
        line = rf"mlxgen\.generate: error: .*(?:{message}).*\n"
        return (self.status, self.out) == (2, "") and re.fullmatch(line, self.err) is not None


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Any:
    def run(*argv: str) -> Outcome:
        try:
            status = main(argv)
        except SystemExit as ended:
            status = ended.code if isinstance(ended.code, int) else 1
        return Outcome(status, *capsys.readouterr())

    return run


def feed(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))


# ---- text ----


def generated(lm: mlxgen.LanguageModel, case: dict[str, Any]) -> str:
    """What the library generates of the prompt of a case, as it is printed."""
    prompt = case["prompt"]
    if "chat" in case:
        prompt = mlxgen.Chat(prompt, **case["chat"]).tokens(lm.vocabulary)
    return ended(lm.generate(prompt, **case["options"]).text)


@pytest.mark.whole
@pytest.mark.parametrize("case", table("commands"), ids=lambda case: " ".join(case["argv"])[:60])
def test_a_command_prints_what_the_library_generates_and_nothing_else(
    case: dict[str, Any],
    lm: mlxgen.LanguageModel,
    cli: Any,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """It is ``unlike`` what the library generates of something else."""
    monkeypatch.chdir(tmp_path)
    for name, text in case.get("files", {}).items():
        (tmp_path / name).write_text(text)
    for name in ("recommended", "max_context", "draft"):
        monkeypatch.setattr(lm, name, case.get(name, getattr(lm, name)))
    template = lm.tokenizer.chat_template + case.get("template", "")
    monkeypatch.setattr(lm.tokenizer._tokenizer, "chat_template", template)
    for name, value in case.get("environment", {}).items():
        monkeypatch.setenv(name, value)
    feed(monkeypatch, case.get("stdin", "").encode())

    outcome = cli(*case["argv"])
    assert outcome.status == 0 and re.fullmatch(case.get("err", ""), outcome.err)
    shown = re.sub(r"\x1b\[[0-9;]*m", "", outcome.out)
    assert (shown == outcome.out) is not case.get("coloured", False)
    if "json" in case:
        assert json.loads(shown) == case["json"]
    else:
        assert shown == (case["shown"] if "shown" in case else generated(lm, case))
    if "unlike" in case:
        assert outcome.out != generated(lm, case | case["unlike"])


def test_every_stop_reaches_the_engine(lm: mlxgen.LanguageModel, cli: Any) -> None:
    text = lm.generate("so", max_tokens=12, temperature=1, seed=3).text
    argv = ("--raw", "-n", "12", "--temperature", "1", "--seed", "3", "so")
    stop = text[len(text) // 2]
    outcome = cli(*argv, "--stop", "never to be seen", "--stop", stop)
    assert outcome.out == ended(text[: text.index(stop)])


def test_without_a_seed_every_draw_is_another(
    lm: mlxgen.LanguageModel, cli: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lm, "recommended", {"temperature": 2.0})
    assert len({cli("-n", "16", "--ignore-eos", "so").out for _ in range(3)}) > 1


def test_a_model_that_cannot_chat_continues_texts_alone(
    lm: mlxgen.LanguageModel, cli: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lm.tokenizer._tokenizer, "has_chat_template", False)
    for argument in ("so", "--chat"):
        assert cli(argument).is_refusal("no chat template; use --raw")


def test_images_come_before_the_prompt(
    cli: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seer = seeing()
    monkeypatch.setattr(sys.modules["mlxgen.load"], "load", lambda *args, **options: seer)
    files = [tmp_path / "1.png", tmp_path / "2.png"]
    for seed, file in enumerate(files):
        file.write_bytes(png(seed))
    expected = seer.generate(asking(*files, text="so"), max_tokens=8).text
    given = [part for file in files for part in ("--image", str(file))]
    assert cli(*given, "--max-tokens", "8", "so").out == ended(expected)
    assert cli("--image", str(tmp_path), "so").is_refusal("--image: .* cannot be read: Is a dir")


@pytest.mark.parametrize("chat", [[], ["--chat"]])
def test_what_was_said_before_comes_from_the_folder(
    chat: list[str], cli: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    long = "tell me a story about the cat and the dog, " * 30
    feed(monkeypatch, b"")
    argv = (*chat, "--cache-dir", str(tmp_path), "--max-tokens", "4", "--verbose", long)
    first = cli(*argv)
    assert first.status == 0 and "cached" not in first.err
    again = cli(*argv)  # loads the model again
    (count,) = map(int, re.findall(r"prompt: +(\d+) tokens", first.err))
    assert again.out == first.out and f"({count - 1} of them cached)" in again.err


# ---- other outputs ----


def test_json_prints_one_object_a_chunk(lm: mlxgen.LanguageModel, cli: Any) -> None:
    outcome = cli("--raw", "--json", "--top-logprobs", "2", "--max-tokens", "6", "so")
    chunks = [json.loads(line) for line in outcome.out.splitlines()]
    result = lm.generate("so", max_tokens=6)
    assert outcome.err == ""
    assert "".join(chunk["text"] for chunk in chunks) == result.text
    assert tuple(chunk["token"] for chunk in chunks) == result.tokens
    assert all(chunk["logprob"] <= 0 and len(chunk["top"]) == 2 for chunk in chunks)
    assert chunks[0]["top"][0] == {
        "token": result.tokens[0],
        "token_text": chunks[0]["token_text"],
        "logprob": chunks[0]["logprob"],
    }
    pieces = [lm.vocabulary.piece(token).decode() for token in result.tokens]
    assert [chunk["token_text"] for chunk in chunks] == pieces
    assert [chunk["finish_reason"] for chunk in chunks] == [None] * 5 + [result.finish_reason]
    assert ["usage" in chunk for chunk in chunks] == [False] * 5 + [True]
    assert chunks[-1]["usage"]["completion_tokens"] == 6


def test_json_says_who_drafted(
    lm: mlxgen.LanguageModel, cli: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lm, "draft", "ngram")
    outcome = cli("--raw", "--json", "--max-tokens", "40", "--ignore-eos", "so")
    lines = [json.loads(line) for line in outcome.out.splitlines()]
    drafted = [line["drafter"] for line in lines if line["drafter"]]
    assert drafted == ["text"] * lines[-1]["usage"]["drafts"]["text"]["accepted"] != []


def test_the_demo_model_says_what_it_is_and_drafts_change_only_the_passes(cli: Any) -> None:
    draft = Path(mlxgen.__file__).parent / "demo" / "draft"
    alone = cli("What is the capital of France?")
    assert "demo model" in alone.err and "--model" in alone.err
    outcome = cli("--verbose", "--draft", str(draft), "What is the capital of France?")
    assert (outcome.status, outcome.out) == (0, alone.out)
    assert re.search(r"model [1-9]\d* of \d+.*, in \d+ passes", outcome.err)


# ---- arguments ----


@pytest.mark.whole
@pytest.mark.parametrize(
    "case", table("command_lines"), ids=lambda case: " ".join(case["argv"])[:40]
)
def test_wrong_input_gives_one_line_and_status_2(
    case: dict[str, Any], cli: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "stdin" in case:
        feed(monkeypatch, case["stdin"].encode("latin-1"))
    outcome = cli(*case["argv"])
    assert outcome.is_refusal(case["refused"]), outcome


def test_every_option_has_a_help_text_and_the_version_names_mlx(cli: Any) -> None:
    listed, options = cli("--help-all").out, inspect.signature(mlxgen.LanguageModel.stream)
    assert {"temperature", "seed", "ignore_eos"} < options.parameters.keys()
    chat = ("prompt", "hooks", "filters", "prefix", "prediction", "stop_tokens")
    programs = ("max_resample", "hold_tokens", "allow_retract", "top_candidates", "logit_bias")
    others = ("self", "stop_in_reasoning", "prompt_logprobs", "dry_sequence_breakers")
    for name in options.parameters.keys() - {*chat, *programs, *others}:
        assert f"--{name.replace('_', '-')}" in listed, name
    assert all(action.help for action in make_parser()._actions)
    assert re.fullmatch(r"mlxgen \S+, mlx \S+, mlx-lm \S+\n", cli("--version").out)


def test_arguments_are_judged_before_mlx_is_imported() -> None:
    code = (
        "import sys; from mlxgen.generate import main\n"
        "assert main(['--prompt', '']) == 2\n"
        "assert main(['--top-p', '7', 'so']) == 2\n"
        "assert not any(name.split('.')[0] in ('mlx', 'mlx_lm') for name in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


# ---- a process of its own ----


def test_text_from_a_pipe_is_added_to_the_prompt_or_is_the_prompt() -> None:
    question, begun, rest = "What is the capital of Italy?", "What is the capital", "of Italy?"
    vocabulary = mlxgen.load().vocabulary
    for text, given, whole in (
        ((question,), "", question),
        ((), question, question),
        ((begun,), rest, f"{begun}\n\n{rest}"),
    ):
        message = {"role": "user", "content": whole}
        prompt = mlxgen.Chat([message], template={"enable_thinking": False}).tokens(vocabulary)
        done = processes.run([*DEMO, *QUIET, "--verbose", *text], given)
        assert done.stderr.partition("prompt: ")[2].split()[0] == f"{len(prompt)}"
        if whole == question:
            assert done.stdout == "The capital of Italy is Rome.\n"
    nothing = processes.run(DEMO)
    assert nothing.returncode == 2 and "there is no prompt; pass one" in nothing.stderr


@pytest.fixture
def endless(folder: Path) -> Iterator[Any]:
    """Start the command with a text that does not end by itself."""
    started: list[subprocess.Popen[bytes]] = []
    options = ["--ignore-eos", "--max-tokens", "900000", "--temperature", "1", "so"]
    command = [*DEMO, "--model", str(folder), "--raw", *options]

    def start(*more: str, stdout: int = subprocess.PIPE) -> subprocess.Popen[bytes]:
        pipes: dict[str, Any] = {"stdout": stdout, "stderr": subprocess.PIPE, "bufsize": 0}
        started.append(subprocess.Popen([sys.executable, *command, *more], **pipes))
        return started[-1]

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # not inherited as ignored
    yield start
    signal.signal(signal.SIGINT, before)
    for process in started:
        process.kill()
        process.communicate()


def test_an_interrupt_before_anything_is_generated_ends_quietly_with_130() -> None:
    code = """if True:
        import os, signal, sys
        from mlxgen import generate

        def load(*names, **options):
            try:
                os.kill(os.getpid(), signal.SIGINT)
            except KeyboardInterrupt:  # as an extension module that is being imported does it
                raise ImportError("an error while initializing the extension")
            return None

        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.modules["mlxgen.load"].load = load
        sys.exit(generate.main(["a"]))
    """
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")


def test_an_interrupt_keeps_the_text_so_far_and_exits_with_130(endless: Any) -> None:
    process = endless("--verbose")
    first = process.stdout.read(20)
    process.send_signal(signal.SIGINT)
    rest, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert (first + rest).decode()
    assert "Traceback" not in err.decode()
    assert "finished:    interrupted" in err.decode()


@pytest.mark.slow
def test_a_closed_pipe_is_not_an_error(endless: Any) -> None:
    process = endless()
    assert process.stdout.read(20)
    process.stdout.close()
    process.stdout = None
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, b"")
