"""Who says a text and what is asked for, as it stands in a table, and every way to ask for it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mlxgen import After, Choice, JsonSchema, PostSamplingResult, Regex, Session
from mlxgen.engine.chunk import Chunk
from mlxgen.tokens import Token
from tests.fakes.speaking import PROMPT, Speaker, endless, reciter, talker

OPTIONS = Path(__file__).parents[1] / "data" / "options.jsonl"
Hook = Callable[[PostSamplingResult], None]
Said = tuple[str, tuple[Token, ...], str | None]


def folded(chunks: Iterable[Chunk]) -> str:
    """What a reader has who deletes what is retracted."""
    text = ""
    for chunk in chunks:
        text = text[: len(text) - chunk.retract] + chunk.text
    return text


# ---- who says it ---------------------------------------------------------------------------------

START, MARK = "<think>", "</think>"
END = "! The end."


def ranks(rows: list[list[Any]], *, pieces: Sequence[str] = (), **options: Any) -> Speaker:
    """It prefers these tokens at each position, and those of the last one from there on."""
    known = [piece for piece in sum(rows, [*pieces]) if isinstance(piece, str)]
    return Speaker(
        known,
        lambda self, generated: self.tokens(rows[min(len(generated), len(rows) - 1)]),
        prompt_length=1,
        **options,
    )


def babbler() -> Speaker:
    """It prefers one letter after another, whatever came before."""

    def say(self: Speaker, generated: list[Token]) -> list[Token]:
        start = len(generated) % 26
        return [97 + (start + i) % 26 for i in range(26)] + [*b'"{}:,0123456789 ', self.end]

    return Speaker([], say)


def thinker(thoughts: list[Any], *, begins: bool = False) -> Speaker:
    """It thinks without an end, unless the mark is there, and then it answers. It ``begins`` with
    thinking, or the prompt has."""
    texts, answer = [piece for piece in (START, MARK, *thoughts) if isinstance(piece, str)], "Yes"

    def say(speaker: Speaker, generated: list[Token]) -> list[Token]:
        mark = speaker.token(MARK)
        if begins and not generated:
            return [speaker.token(START)]
        if mark not in generated:
            thought = thoughts[len(generated) % len(thoughts)]
            return [speaker.token(thought), speaker.token("z")]
        said = len(generated) - generated.index(mark) - 1
        return [speaker.token(answer[said]) if said < len(answer) else speaker.end]

    return Speaker(texts, say, prompt_length=1 if begins else 2)


def parrot(turn: str, *, way_out: str = "!") -> Speaker:
    """It says ``turn`` for ever; only if it has to say something else, it comes to the end, or to
    ``turn`` again if there is no such ``way_out``."""

    def say(speaker: Speaker, generated: list[Token]) -> list[Token]:
        text = speaker.text(generated)
        if way_out and way_out in text:
            left = END[len(text) - text.index(way_out) :]
            return [ord(left[0])] if left else [speaker.end]
        said = turn * (2 + len(text) // len(turn))
        return [ord(said[len(text)]), *map(ord, way_out or "#%&+=~^")]

    return Speaker([], say)


def speaker_of(model: Any) -> Speaker:
    """Who says it: a name, or the name of a maker with what it is given and its options."""
    if isinstance(model, str):
        return {"endless": endless, "babble": babbler}[model]()
    [(name, given), *options] = model.items()
    makers: dict[str, Callable[..., Speaker]] = {
        "recite": reciter,
        "talk": talker,
        "ranks": ranks,
        "think": thinker,
        "parrot": parrot,
    }
    return makers[name](given, **dict(options))


# ---- hooks by their names ------------------------------------------------------------------------


def resampling(result: PostSamplingResult) -> None:
    result.resample = result.attempt == 0 and result.position % 3 == 1


def stepping_back(result: PostSamplingResult) -> None:
    result.rewind = 3 if result.attempt == 0 and result.position % 5 == 4 else 0


def going_far_back(result: PostSamplingResult) -> None:
    result.rewind = 14 if result.attempt == 0 and result.position % 16 == 15 else 0


def putting_others(result: PostSamplingResult) -> None:
    if result.position % 4 == 2:
        result.sampled_token = 65 + result.position % 20


def looking(result: PostSamplingResult) -> None:
    if result.sampled_prob < 0.02 and result.attempt < 2 and len(result.candidate_probs) > 1:
        result.resample, result.exclude = True, [result.sampled_token]


def picky(result: PostSamplingResult) -> None:
    """Takes back what it has seen, and wants the next draw to be another than those after it."""
    if result.attempt == 0 and result.position % 5 == 3:
        result.rewind, result.temperature = min(2, result.can_rewind), 3.0
    elif result.attempt == 0 and result.position % 3 == 1:
        result.resample, result.exclude = True, {result.sampled_token}


def goes_back(result: PostSamplingResult) -> None:
    """Its decisions depend on how far back it may go."""
    can = result.can_rewind
    if not result.attempt and (result.position * 7 + can) % 5 == 0:
        result.rewind = min(2, can)


HOOKS: tuple[Hook, ...] = (
    *(resampling, stepping_back, going_far_back, putting_others, looking, picky, goes_back),
)


# ---- what is asked for ---------------------------------------------------------------------------


def asks(wishes: Mapping[Any, Mapping[str, Any]]) -> Hook:
    """A hook that asks for these at a position, or at a position and attempt, or for a letter."""

    def hook(result: PostSamplingResult) -> None:
        position, token = result.position, chr(result.sampled_token)
        for key in (position, (position, result.attempt), token):
            for name, value in wishes.get(key, {}).items():
                setattr(result, name, value)

    return hook


def filter_of(spec: Mapping[str, Any]) -> Any:
    [(name, given)] = spec.items()
    if name == "after":
        mark, after, *required = given
        return After(mark, filter_of(after), required=required != [False])
    return {"regex": Regex, "choice": Choice, "json_schema": JsonSchema}[name](given)


def ban_of(text: str) -> Any:
    return re.compile(text[1:-1]) if text.startswith("/") else text


def wished(name: str, value: Any) -> Any:
    """What a hook sets, with letters for tokens."""
    if not isinstance(value, str):
        return value
    return ord(value) if name == "sampled_token" else list(value.encode())


def options_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """Options that a table writes in JSON: filters by their names, expressions between slashes, and
    a hook by what it asks for and where."""
    options = dict(given)
    if "filters" in options:
        options["filters"] = [filter_of(spec) for spec in options["filters"]]
    if "banned" in options:
        bans = options["banned"]
        options["banned"] = ban_of(bans) if isinstance(bans, str) else list(map(ban_of, bans))
    if "logit_bias" in options:
        options["logit_bias"] = {int(id): bias for id, bias in options["logit_bias"].items()}
    if isinstance(options.get("hooks"), str):
        names = {hook.__name__.replace("_", " "): hook for hook in HOOKS}
        options["hooks"] = names[options["hooks"]]
    elif options.get("hooks"):
        options["hooks"] = asks(
            {
                tuple(key) if isinstance(key, list) else key: {
                    name: wished(name, value) for name, value in wish.items()
                }
                for key, wish in options["hooks"]
            }
        )
    return options


def options_for(law: str) -> dict[str, dict[str, Any]]:
    """The options that a law is tried with, by their names."""
    lines = map(json.loads, OPTIONS.read_text(encoding="utf-8").splitlines())
    return {line["name"]: options_of(line["options"]) for line in lines if line["law"] == law}


def fits(number: int, wanted: int | Sequence[int]) -> bool:
    """Whether it is the number that is wanted, or between the least and the most."""
    least, most = (wanted, wanted) if isinstance(wanted, int) else wanted
    return least <= number <= most


# ---- every way ----------------------------------------------------------------------------------


def streamed(speaker: Speaker, prompt: Sequence[Token] = PROMPT, **options: Any) -> list[Chunk]:
    """The chunks of a stream, each token in one of them and in order, and with them at every moment
    what the stream itself shows."""
    chunks: list[Chunk] = []
    tokens = list(options.get("prefix", ()))
    for chunk in (stream := speaker.lm.stream(prompt, **options)):
        chunks.append(chunk)
        assert chunk.index == len(tokens) or chunk.retract or options.get("allow_retract")
        tokens = tokens[: chunk.index] + ([] if chunk.token is None else [chunk.token])
        assert (stream.text, stream.tokens) == (folded(chunks), tokens)
        assert stream.finish_reason == chunk.finish_reason
    assert {chunk.finish_reason for chunk in chunks[:-1]} <= {None}
    return chunks


class Caller:
    """One that runs a model of its own for a session: it holds what the session says."""

    def __init__(self, speaker: Speaker) -> None:
        self._speaker = speaker
        self._held: list[Token] = []

    def push(self, session: Session) -> Chunk:
        """Push the logits of the next position, which uses one, or says what it took back."""
        assert session.pending
        self._held = self._held[: session.keep] + session.pending
        assert self._held == session.history
        wanted: Any = self._speaker.model.script(tuple(self._held))
        if not isinstance(wanted, Mapping):
            wanted = {token: -float(rank) for rank, token in enumerate(wanted)}
        logits = np.full(self._speaker.vocabulary.size, -50.0, np.float32)
        logits[list(wanted)] = list(wanted.values())
        before = len(session.tokens)
        chunk = session.push_logits(logits)
        assert len(session.tokens) >= before + 1 - chunk.rewound  # a hook may put more
        return chunk


def in_session(speaker: Speaker, prompt: Sequence[Token] = PROMPT, **options: Any) -> Said:
    """What a session says, which is told by its chunks as well."""
    session, caller = Session(speaker.tokenizer, prompt=prompt, **options), Caller(speaker)
    chunks: list[Chunk] = []
    while session.finish_reason is None:
        if forced := session.forced():
            chunks.append(session.push_token(forced[0]))
        else:
            chunks.append(caller.push(session))
    assert folded(chunks) == session.text
    return session.text, tuple(session.tokens), session.finish_reason


def in_every_way(
    speaker: Speaker,
    prompt: Sequence[Token] = PROMPT,
    without: Collection[str] = (),
    **options: Any,
) -> Said:
    """What a text says, whichever way it is asked for."""
    once = speaker.lm.generate(prompt, draft="off", **options)
    said = once.text, tuple(once.tokens), once.finish_reason
    for draft in ("off", "ngram", "auto"):
        chunks = streamed(speaker, prompt, draft=draft, **options)
        assert (folded(chunks), chunks[-1].finish_reason) == (once.text, once.finish_reason)
        assert [c.token for c in chunks if c.token is not None] == list(once.tokens) or any(
            chunk.retract for chunk in chunks
        )
    for each in speaker.lm.batch([prompt] * 3, **options).run():
        assert (each.text, tuple(each.tokens), each.finish_reason) == said
    if "session" not in without:
        assert in_session(speaker, prompt, **options) == said
    return said
