"""What the measurements share: figures in tables, comparisons in turns, models, and servers."""

from __future__ import annotations

import contextlib
import gc
import itertools
import json
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from http.client import HTTPConnection, HTTPException
from importlib import resources
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple, TypeAlias
from unittest import mock

import httpx
from mlx_lm import stream_generate
from mlx_lm.generate import BatchGenerator
from mlx_lm.tokenizer_utils import BPEStreamingDetokenizer, TokenizerWrapper
from rich.table import Table
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

import mlxgen

from .architectures import random_model

# ---- figures -----------------------------------------------------------------------------------


class Figure(NamedTuple):
    """``found`` in words, and as a ``value`` if it is a number that can be compared. ``met`` is
    ``None`` where nothing is ``wanted``."""

    what: str
    found: str
    wanted: str = ""
    met: bool | None = None
    value: float | None = None


def at_least(what: str, value: float, target: float, text: object = None) -> Figure:
    found = f"{value:.3g}" if text is None else str(text)
    return Figure(what, found, f"at least {target:g}", value >= target, value)


def at_most(what: str, value: float, target: float, text: object = None, unit: str = "") -> Figure:
    found = f"{value:.3g}{unit}" if text is None else str(text)
    return Figure(what, found, f"at most {target:g}{unit}", value <= target, value)


def guarded(name: str, figures: Iterable[Figure]) -> Iterator[Figure]:
    """These figures; if measuring one of them fails, say because a peer did, that is a row."""
    try:
        yield from figures
    except Exception as error:
        yield Figure(name, f"failed: {type(error).__name__}: {error}"[:400])


def shown(name: str, figures: Iterable[Figure]) -> Table:
    table = Table("what", "found", "wanted", "", title=name, title_justify="left")
    for figure in figures:
        sign = "" if figure.met is None else "met" if figure.met else "missed"
        table.add_row(figure.what, figure.found, figure.wanted, sign)
    return table


def save(path: Path, found: Mapping[str, Sequence[Figure]]) -> None:
    """Keep the figures of each measurement as JSON."""
    told = {name: [figure._asdict() for figure in figures] for name, figures in found.items()}
    path.write_text(json.dumps(told, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def compared(before: Path, after: Path) -> Iterator[Table]:
    """A table for each measurement that two files have: what each found, and the change."""
    one, other = (json.loads(path.read_text(encoding="utf-8")) for path in (before, after))
    for name in [name for name in one if name in other]:
        table = Table("what", before.stem, after.stem, "change", title=name, title_justify="left")
        earlier = {each["what"]: each for each in one[name]}
        later = {each["what"]: each for each in other[name]}
        for what in {**earlier, **later}:
            a, b = earlier.get(what, {}), later.get(what, {})
            values = a.get("value"), b.get("value")
            change = f"{100 * (values[1] / values[0] - 1):+.1f} %" if all(values) else ""
            table.add_row(what, a.get("found", "-"), b.get("found", "-"), change)
        yield table


# ---- comparisons -------------------------------------------------------------------------------


class Spread(NamedTuple):
    """A median with its quartiles."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: list[float]) -> Spread:
        low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(middle, low, high)

    def __str__(self) -> str:
        return f"{self.median:.3f} ({self.low:.3f} to {self.high:.3f})"


class Comparison(NamedTuple):
    """``ratio``: how many times faster ours is than theirs. Seconds for each work."""

    ratio: Spread
    ours: Spread
    theirs: Spread


def compare(
    ours: Callable[[], float | None], theirs: Callable[[], float | None], turns: int = 9
) -> Comparison:
    """Run both in turn, each first half of the time, after one warm-up each, in this process: what
    disturbs one disturbs the other, and a ratio is taken within a turn.

    A work may return its own measure of seconds, when not all of it is to be counted.
    """
    measure(ours), measure(theirs)
    own: list[float] = []
    other: list[float] = []
    for turn in range(turns):
        for work, found in [(ours, own), (theirs, other)][:: -1 if turn % 2 else 1]:
            found.append(measure(work))
    ratios = [b / a for a, b in zip(own, other, strict=True)]
    return Comparison(Spread.of(ratios), Spread.of(own), Spread.of(other))


def measure(work: Callable[[], float | None]) -> float:
    """Seconds of one run, by its own account or by the clock."""
    gc.collect()
    gc.disable()
    try:
        start = time.perf_counter()
        own = work()
        return own if own is not None else time.perf_counter() - start
    finally:
        gc.enable()


def timed(stream: Iterator[object], tokens: int, after: int = 0) -> float:
    """Seconds until there are ``tokens`` items, perhaps from one of the first on."""
    count = sum(1 for _ in itertools.islice(stream, after))
    start = time.perf_counter()
    count += sum(1 for _ in stream)
    seconds = time.perf_counter() - start
    assert count == tokens, (count, tokens)
    return seconds


# ---- ours and mlx-lm's -------------------------------------------------------------------------

Made: TypeAlias = Generator[Any, None, None]  # tokens, as they are made


def ours(lm: mlxgen.LanguageModel, prompt: Any, tokens: int | None, **options: Any) -> Made:
    """Our stream of a prompt."""
    options = {"temperature": 0, "ignore_eos": True, "max_tokens": tokens, **options}
    with lm.stream(prompt, **options) as chunks:
        yield from chunks


def theirs(lm: mlxgen.LanguageModel, prompt: Any, tokens: int, **options: Any) -> Made:
    """mlx-lm's stream with the same model."""
    with mock.patch.object(lm.tokenizer, "_eos_token_ids", set()):
        yield from stream_generate(lm.model, lm.tokenizer, prompt, max_tokens=tokens, **options)


def ours_together(
    lm: mlxgen.LanguageModel,
    prompts: Sequence[list[int]],
    tokens: int | None,
    settings: Sequence[dict[str, Any]] = ({},),
    **options: Any,
) -> Made:
    """Our batch of some prompts, which have the ``settings`` in turn."""
    each: Any = [settings[i % len(settings)] for i in range(len(prompts))]
    limits = mlxgen.Limits(max_batch=len(prompts), keep_prefixes=False)
    options = {"temperature": 0, "ignore_eos": True, "max_tokens": tokens, **options}
    with lm.batch(prompts, each=each, limits=limits, **options) as chunks:
        yield from chunks


def theirs_together(model: Any, prompts: Sequence[list[int]], tokens: int, **options: Any) -> Made:
    """mlx-lm's batch of the same prompts."""
    generator = BatchGenerator(model, stop_tokens=None)
    generator.insert(list(prompts), max_tokens=[tokens] * len(prompts), **options)
    left = len(prompts)
    try:
        while left:
            for response in generator.next_generated():
                left -= response.finish_reason is not None
                yield response
    finally:
        generator.close()


# ---- models ------------------------------------------------------------------------------------

WIDE = 151_936  # tokens of a large vocabulary
DEMO = Path(str(resources.files("mlxgen") / "demo" / "model"))
DRAFT = str(DEMO.parent / "draft")
TINY: dict[str, dict[str, Any]] = {
    "llama": {},
    "gemma3_text": {"sliding_window": 64},
    "qwen3_next": {},
}
"""Architectures: plain attention, sliding windows, and a recurrent state in every other layer."""

_SYLLABLES = [a + b for a in "bcdfghklmnprstvwz" for b in ("a", "e", "i", "o", "u", "an", "er")]
_SIGNS = ['{"', '":', '": "', '", "', '"}', "},", "},{", "[", '["', '"]', "]", '""', ", ", ": "]


def prompt_of(length: int, seed: int, vocab_size: int = 256) -> list[int]:
    """Made-up tokens; the same seed gives the same."""
    chance = random.Random(seed)
    return [chance.randrange(3, min(256, vocab_size)) for _ in range(length)]


def demo() -> mlxgen.LanguageModel:
    """The bundled model."""
    return mlxgen.load(draft="off")


def random_llama(vocab_size: int, hidden: int, layers: int) -> mlxgen.LanguageModel:
    """A float32 Llama of random weights with a made-up tokenizer of ``vocab_size`` tokens."""
    model = random_model(
        "llama",
        vocab_size=vocab_size,
        hidden_size=hidden,
        num_hidden_layers=layers,
        intermediate_size=3 * hidden,
        num_attention_heads=hidden // 32,
        num_key_value_heads=max(1, hidden // 64),
        max_position_embeddings=32_768,
        tie_word_embeddings=True,
    )
    return mlxgen.LanguageModel(model, fake_tokenizer(vocab_size), draft="off")


def tiny(name: str, layers: int = 4) -> mlxgen.LanguageModel:
    """A small model of random weights of an architecture of ``TINY``."""
    model = random_model(
        name,
        vocab_size=512,
        num_hidden_layers=layers,
        num_attention_heads=4,
        max_position_embeddings=8192,
        **TINY[name],
    )
    return mlxgen.LanguageModel(model, fake_tokenizer(512), name=name, draft="off")


def fake_tokenizer(size: int) -> TokenizerWrapper:
    """A byte-level tokenizer of made-up words, numbers and JSON signs, with one end token."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(256, 512))
    names = [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]
    tokens = {names[byte]: byte for byte in range(256)}
    made = (parts for n in itertools.count(1) for parts in itertools.product(_SYLLABLES, repeat=n))
    words = (form for word in map("".join, made) for form in (word, " " + word, word.capitalize()))
    for text in itertools.chain(_SIGNS, map(str, range(1000)), words):
        if len(tokens) == size - 1:
            break
        tokens.setdefault("".join(names[byte] for byte in text.encode()), len(tokens))
    tokenizer = Tokenizer(models.BPE(vocab=tokens, merges=[], ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|end|>"])
    return wrapped(tokenizer, "<|end|>")


def wrapped(tokenizer: Tokenizer, end: str) -> TokenizerWrapper:
    """A tokenizer as mlx-lm has them."""
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=end, clean_up_tokenization_spaces=False
    )
    return TokenizerWrapper(fast, BPEStreamingDetokenizer)


# ---- servers -----------------------------------------------------------------------------------

START, ANSWER = 90.0, 20.0  # seconds that a server may take to be ready, and to answer


class Server:
    """A server process, of mlxgen or of mlx-lm, on a free port: from ``start`` to ``stop``, or
    inside a ``with``."""

    def __init__(
        self,
        name: Literal["mlxgen", "mlx_lm"],
        arguments: Sequence[str] = (),
        *,
        descriptors: int | None = None,
    ) -> None:
        self.name, self.arguments, self.descriptors = name, arguments, descriptors
        self.host, self.port = "127.0.0.1", 0
        self.resets = 0  # connections of good requests that it did not take
        self.process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None

    def __enter__(self) -> Server:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    def start(self) -> None:
        with socket.socket() as probe:
            probe.bind((self.host, 0))
            self.port = probe.getsockname()[1]
        level = "warning" if self.name == "mlxgen" else "ERROR"
        command = [sys.executable, "-m", f"{self.name}.server", "--port", str(self.port)]
        command += ["--log-level", level, *self.arguments]
        if self.descriptors is not None:
            command = ["sh", "-c", f'ulimit -n {self.descriptors}; exec "$@"', "sh", *command]
        self._log = tempfile.TemporaryFile()  # noqa: SIM115
        self.process = subprocess.Popen(command, stdout=self._log, stderr=self._log)
        end = time.monotonic() + START
        while not self.answers():
            if self.process.poll() is not None or time.monotonic() > end:
                reason = self.logged()[-500:]
                self.stop()
                raise RuntimeError(f"{self.name}.server does not start: {reason}")
            time.sleep(0.2)

    def stop(self) -> None:
        """Have it end as its operator does, and by force if it does not."""
        if self.process is None or self._log is None:
            return
        self.process.terminate()
        try:
            self.process.wait(15)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._log.close()
        self.process = self._log = None

    def answers(self) -> bool:
        """Whether a small request is answered in time."""
        with contextlib.suppress(OSError, HTTPException):
            return self.ask({"prompt": "Hello", "max_tokens": 1})[0] == 200
        return False

    def ask(self, body: dict[str, Any], path: str = "/v1/completions") -> Asked:
        """Send a request and read its events, or its one answer."""
        connection = HTTPConnection(self.host, self.port, timeout=ANSWER)
        try:
            start = time.perf_counter()
            headers = {"Content-Type": "application/json"}
            connection.request("POST", path, json.dumps(body), headers)
            response = connection.getresponse()
            first, events = 0.0, []
            while line := response.readline():
                if line.startswith(b"data: {"):
                    first = first or time.perf_counter() - start
                    events.append(json.loads(line[6:]))
            return Asked(response.status, first or time.perf_counter() - start, events)
        finally:
            connection.close()

    def memory(self) -> int:
        """Resident bytes."""
        assert self.process is not None
        command = ["ps", "-o", "rss=", "-p", str(self.process.pid)]
        return int(subprocess.run(command, capture_output=True, check=True).stdout) << 10

    def figures(self) -> dict[str, float]:
        """The figures of ``/metrics`` that have no labels."""
        text = httpx.get(f"{self.url}/metrics", timeout=ANSWER).text
        rows = (line.split(" ") for line in text.splitlines() if line[:1] not in ("#", ""))
        return {name: float(value) for name, *_, value in rows if "{" not in name}

    def logged(self) -> str:
        """What it has written since its start."""
        assert self._log is not None
        self._log.seek(0)
        return self._log.read().decode(errors="replace")


class Asked(NamedTuple):
    """The status of an answer, the seconds to its first event, and the events of a stream."""

    status: int
    first: float
    events: list[dict[str, Any]]
