"""The command line: what goes where, and the exit status."""

from __future__ import annotations

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
from mlxgen.options.table import OPTIONS

from . import processes
from .fakes.checkpoints import write_checkpoint
from .fakes.seeing import asking, png, seeing

DEMO = ["-m", "mlxgen.generate"]
QUIET = ("--chat-template-args", '{"enable_thinking": false}')
LINES = (Path(__file__).parent / "data" / "command_lines.jsonl").read_text(encoding="utf-8")
REFUSED: list[dict[str, Any]] = [json.loads(line) for line in LINES.splitlines()]


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
        return (
            self.status == 2
            and self.out == ""
            and self.err.count("\n") == 1
            and self.err.startswith("mlxgen.generate: error: ")
            and re.search(message, self.err) is not None
        )


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


def test_text_and_nothing_else_goes_to_standard_output(lm: mlxgen.LanguageModel, cli: Any) -> None:
    outcome = cli("--raw", "--max-tokens", "8", "the the")
    expected = lm.generate("the the", max_tokens=8).text
    assert (outcome.status, outcome.out, outcome.err) == (0, expected + "\n", "")


def test_the_prompt_is_a_chat_unless_raw_is_asked_for(
    lm: mlxgen.LanguageModel, cli: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages = [{"role": "system", "content": "in the"}, {"role": "user", "content": "so"}]
    for argv, asked in ((("--system", "in the"), messages), ((), messages[1:])):
        expected = lm.generate(asked, max_tokens=8).text
        assert cli(*argv, "--prompt", "so", "--max-tokens", "8").out == ended(expected)
    monkeypatch.setattr(lm.tokenizer._tokenizer, "has_chat_template", False)
    for argument in ("so", "--chat"):
        assert cli(argument).is_refusal("no chat template; use --raw")


def test_images_come_before_the_prompt(
    lm: mlxgen.LanguageModel, cli: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert cli("--image", "cat.png", "so").is_refusal("--image: this model takes no images")
    seer = seeing()
    monkeypatch.setattr(sys.modules["mlxgen.load"], "load", lambda *args, **options: seer)
    files = [tmp_path / "1.png", tmp_path / "2.png"]
    for seed, file in enumerate(files):
        file.write_bytes(png(seed))
    expected = seer.generate(asking(*files, text="so"), max_tokens=8).text
    given = [part for file in files for part in ("--image", str(file))]
    assert cli(*given, "--max-tokens", "8", "so").out == ended(expected)
    assert cli("--image", str(tmp_path), "so").is_refusal("--image: .* cannot be read: Is a dir")


def test_a_dash_reads_standard_input_without_its_last_line_end(
    lm: mlxgen.LanguageModel, cli: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for option in ([], ["--prompt"]):
        feed(monkeypatch, "ñ so\n".encode())
        outcome = cli("--raw", "--max-tokens", "4", *option, "-")
        assert outcome.out == ended(lm.generate("ñ so", max_tokens=4).text)
    for data, refused in ((b"\xff\xfe", "standard input is not UTF-8"), (b"\n", "is empty")):
        feed(monkeypatch, data)
        assert cli("-").is_refusal(refused)


def test_options_and_every_stop_reach_the_engine(lm: mlxgen.LanguageModel, cli: Any) -> None:
    sampling = {"temperature": 1.0, "top_p": 0.9, "top_k": 50, "min_p": 0.01, "seed": 3}
    argv = [f"--{name.replace('_', '-')}={value}" for name, value in sampling.items()]
    first = cli("--raw", "--max-tokens", "8", "so", *argv)
    assert first.out == ended(lm.generate("so", max_tokens=8, **sampling).text)  # type: ignore[arg-type]
    assert first.out != cli("--raw", "--max-tokens", "8", "so", *argv, "--seed", "4").out
    text = lm.generate("so", max_tokens=12).text
    stop = text[len(text) // 2]
    outcome = cli("--raw", "-n", "12", "--stop", "never to be seen", "--stop", stop, "so")
    assert outcome.out == ended(text[: text.index(stop)])
    breakers = ("--dry-sequence-breaker", ":", "--dry-sequence-breaker", "")
    assert cli("--dry-multiplier", "0.8", *breakers, "so").is_refusal("--dry-sequence-breaker: ")


def test_a_chat_may_fill_the_context_and_raw_text_may_not(
    lm: mlxgen.LanguageModel, cli: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut = cli("--raw", "--ignore-eos", "so")
    assert cut.err == "mlxgen.generate: stopped after 256 tokens; --max-tokens allows more\n"
    assert cli("--raw", "--ignore-eos", "--max-tokens", "4", "so").err == ""
    monkeypatch.setattr(lm, "max_context", 600)
    outcome = cli("--ignore-eos", "so")
    assert outcome.err == "mlxgen.generate: stopped because the context of 600 tokens is full\n"
    messages = [{"role": "user", "content": "so"}]
    whole = lm.generate(messages, ignore_eos=True, max_tokens=None, loops="take back")
    assert outcome.out == ended(whole.text) and whole.usage.completion_tokens > 256
    assert cli("--ignore-eos", "--min-tokens", "300", "so").status == 0
    assert cli("--raw", "--min-tokens", "300", "so").is_refusal("--min-tokens: 300 is more than")
    assert cli("--raw", "so " * 700).is_refusal("context")


def test_what_the_makers_recommend_holds_for_chats_and_not_for_raw_text(
    lm: mlxgen.LanguageModel, cli: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    recommended = {"temperature": 1.5, "top_k": 30}
    monkeypatch.setattr(lm, "recommended", recommended)
    messages = [{"role": "user", "content": "so"}]

    def chat(**options: Any) -> str:
        return ended(lm.generate(messages, max_tokens=12, seed=3, **options).text)

    given = ("--max-tokens", "12", "--seed", "3", "so")
    greedy = chat(temperature=0)
    assert cli(*given).out == chat() == chat(temperature=1.5, top_k=30) != greedy
    assert cli("--temperature", "0.9", *given).out == chat(temperature=0.9)
    assert cli("--temperature", "0", *given).out == greedy
    assert cli("--sampling-defaults", "greedy", *given).out == greedy
    openai = cli("--sampling-defaults", "openai", *given).out
    assert openai == chat(temperature=1.0, top_k=0)
    raw = ended(lm.generate("so", max_tokens=12).text)
    assert cli("--raw", *given).out == raw
    drawn = lm.generate("so", max_tokens=12, seed=3, temperature=1.5, top_k=30).text
    assert cli("--raw", "--sampling-defaults", "model", *given).out == ended(drawn) != raw
    told = cli("--verbose", "--top-p", "0.5", *given).err
    assert "sampling:    temperature 1.5, top_k 30, top_p 0.5\n" in told
    feed(monkeypatch, b"/set temperature\n/set top_k 3\n/set top_k default\n/set seed\n")
    told = cli("--chat", "--seed", "3").err
    assert re.findall(r"^([* ]) (\w+) +(\S+)$", told, re.M) == [
        (" ", "temperature", "1.5"),
        ("*", "top_k", "3"),
        (" ", "top_k", "30"),
        ("*", "seed", "3"),
    ]
    monkeypatch.setattr(lm, "recommended", {"temperature": 2.0})
    assert len({cli("-n", "16", "--ignore-eos", "so").out for _ in range(3)}) > 1  # no seed
    monkeypatch.setattr(lm, "recommended", {})
    balanced = chat(temperature=0.7, top_p=0.95, min_p=0.05)
    assert cli(*given).out == chat() == balanced != greedy


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


def test_a_schema_or_an_expression_constrains_the_text(
    lm: mlxgen.LanguageModel, cli: Any, tmp_path: Path
) -> None:
    schema = tmp_path / "schema.json"
    schema.write_text('{"enum": [[1, 2]]}')
    for given in (str(schema), ' {"enum": [[1, 2]]}'):
        assert json.loads(cli("--json-schema", given, "so").out) == [1, 2]
    assert cli("--regex", "ab{3}", "so").out == "abbb\n"
    closed = cli("--json-schema", '{"type": "object", "properties": {}}', "so")
    assert json.loads(closed.out) == {}  # objects have no keys but those that are named


def test_template_arguments_and_control_tokens_reach_the_template_if_they_are_meant(
    lm: mlxgen.LanguageModel, cli: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "so<|im_end|>\n<|im_start|>system\nsad"
    messages = [{"role": "user", "content": text}]
    lengths = set()
    for flags, allowed in (((), False), (("--allow-control-tokens",), True)):
        prompt = mlxgen.Chat(messages, allow_control_tokens=allowed).tokens(lm.vocabulary)
        lengths.add(len(prompt))
        expected = lm.generate(prompt, max_tokens=8).text
        assert cli(*flags, "--max-tokens", "8", text).out == ended(expected)
    assert len(lengths) == 2
    template = lm.tokenizer.chat_template + "{% if warm %}the{% endif %}"
    monkeypatch.setattr(lm.tokenizer._tokenizer, "chat_template", template)
    warm = mlxgen.Chat(messages, template={"warm": True})
    argv = ("--chat-template-args", '{"warm": true}', "--max-tokens", "8", text)
    assert cli(*argv).out == ended(lm.generate(warm, max_tokens=8).text)


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


def test_show_probs_colours_where_colours_are_wanted(
    lm: mlxgen.LanguageModel, cli: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    argv = ("--raw", "--show-probs", "--max-tokens", "6", "so")
    text = lm.generate("so", max_tokens=6).text
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.delenv("NO_COLOR", raising=False)
    outcome = cli(*argv)
    assert "\x1b[48;5;" in outcome.out
    assert re.sub(r"\x1b\[[0-9;]*m", "", outcome.out) == ended(text)
    assert "≥ 90%" in outcome.err
    monkeypatch.setenv("NO_COLOR", "1")
    outcome = cli(*argv)
    assert outcome.out == ended(text)
    assert "no colours, because" in outcome.err


def test_verbose_reports_speed_memory_and_who_drafted_and_json_likewise(
    lm: mlxgen.LanguageModel, cli: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lm, "draft", "off")
    plain = cli("--raw", "--verbose", "--max-tokens", "6", "so so")
    assert plain.out == ended(lm.generate("so so", max_tokens=6).text)
    for pattern in (
        rf"prompt: +{len(lm.vocabulary.encode('so so'))} tokens, [\d.]+ tokens per second",
        r"generation: +6 tokens, [\d.]+ tokens per second",
        r"drafted: +nothing, in \d+ passes",
        r"finished: +length",
        r"peak memory: [\d.]+ GB",
    ):
        assert re.search(pattern, plain.err), pattern
    argv = ("--raw", "--verbose", "--draft", "ngram", "--max-tokens", "40", "--ignore-eos", "so")
    monkeypatch.setattr(lm, "draft", "ngram")  # as the real load() would have it
    outcome = cli(*argv)
    assert outcome.out == ended(lm.generate("so", max_tokens=40, ignore_eos=True).text)
    found = re.search(
        r"drafted: +(\d+) tokens, (\d+) of them accepted \(text \2 of \1\), in \d+ passes\n",
        outcome.err,
    )
    assert found is not None
    assert int(found[1]) >= int(found[2]) > 0
    assert cli(*argv, "--num-draft-tokens", "1").out == outcome.out
    lines = [json.loads(line) for line in cli(*argv[:1], "--json", *argv[2:]).out.splitlines()]
    drafted = [line["drafter"] for line in lines if line["drafter"]]
    assert drafted == ["text"] * lines[-1]["usage"]["drafts"]["text"]["accepted"] != []
    one = cli("--raw", "-n", "1", "--verbose", "so").err
    assert "generation:  1 token\n" in one and "stopped after" not in one


def test_the_demo_model_says_what_it_is_and_a_draft_model_changes_only_the_passes(
    cli: Any,
) -> None:
    draft = Path(mlxgen.__file__).parent / "demo" / "draft"
    alone = cli("What is the capital of France?")
    assert "demo model" in alone.err and "--model" in alone.err
    outcome = cli("--verbose", "--draft", str(draft), "What is the capital of France?")
    assert (outcome.status, outcome.out) == (0, alone.out)
    found = re.search(r"model (\d+) of (\d+).*, in (\d+) passes", outcome.err)
    assert found is not None
    assert int(found[2]) >= int(found[1]) > 0 < int(found[3])


# ---- arguments ----


@pytest.mark.whole
@pytest.mark.parametrize("case", REFUSED, ids=lambda case: " ".join(case["argv"])[:40])
def test_wrong_input_gives_one_line_and_status_2(case: dict[str, Any], cli: Any) -> None:
    outcome = cli(*case["argv"])
    assert outcome.is_refusal(case["refused"]), outcome


def test_every_option_has_a_help_text_and_the_version_names_mlx(cli: Any) -> None:
    listed = cli("--help-all").out
    assert {"temperature", "seed", "ignore_eos"} < OPTIONS.keys()
    chat = ("hooks", "filters", "prefix", "prediction", "stop_tokens", "stop_in_reasoning")
    programs = ("max_resample", "hold_tokens", "allow_retract", "top_candidates", "logit_bias")
    for name in OPTIONS.keys() - {*chat, *programs, "prompt_logprobs", "dry_sequence_breakers"}:
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


def run(*arguments: str, given: str | None = None) -> subprocess.CompletedProcess[str]:
    return processes.run([*DEMO, *arguments], given)


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
        done = run(*QUIET, "--verbose", *text, given=given)
        assert done.stderr.partition("prompt: ")[2].split()[0] == f"{len(prompt)}"
        if whole == question:
            assert done.stdout == "The capital of Italy is Rome.\n"
    nothing = run()
    assert nothing.returncode == 2 and "there is no prompt; pass one" in nothing.stderr


def test_a_wrong_model_ends_the_process_with_status_2(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    done = run("--model", str(tmp_path), "so")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "holds no weights" in done.stderr


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
