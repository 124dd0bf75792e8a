"""Who runs, who waits for whom and who gives way, and that nobody can tell from the texts: every
line of ``tests/data/schedules.jsonl``.

A line has limits, what is on disk, and what is done and seen one after the other. Rows have names;
a prompt is made of words, of which ``A*9`` stands for nine letters. Numbers are exact, or the least
and the most. Each row says at its end what it says alone, unless it is seen to fail.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from mlxgen import PostSamplingResult, Regex, errors
from mlxgen.engine.prefix.block import Block
from mlxgen.engine.prefix.block_file import Layout
from mlxgen.engine.prefix.disk import Disk
from mlxgen.engine.prefix.store import BlockStore
from mlxgen.engine.scheduling import prefill
from mlxgen.engine.step.handle import Handle
from mlxgen.engine.step.pace import Pace
from tests.engine.kit import fits
from tests.fakes.failing import How, Unread, fail
from tests.fakes.speaking import Hall, Speaker, endless, letters

TABLE = Path(__file__).parents[2] / "data" / "schedules.jsonl"
LINES = [json.loads(line) for line in TABLE.read_text(encoding="utf-8").splitlines()]


def tokens_of(prompt: str) -> list[int]:
    tokens: list[int] = []
    for word in prompt.split():
        what, _, count = word.partition("*")
        if what == "squares":
            tokens += [(i * i) % 90 for i in range(int(count))]
        else:
            tokens += what.encode() * int(count or 1)
    return tokens


def interrupting(position: int) -> Callable[[PostSamplingResult], None]:
    """A hook that is interrupted once."""
    left = [KeyboardInterrupt()]

    def hook(result: PostSamplingResult) -> None:
        if result.position == position and left:
            raise left.pop()

    return hook


class Counted(Disk):
    """Notes where the blocks end that it reads."""

    def __init__(self, path: Path, speaker: Speaker) -> None:
        super().__init__(path, 1 << 40, Layout(speaker.lm.runtime.make_cache))
        self.reads: list[int] = []

    def read(self, block: Block) -> Block:
        self.reads.append(block.stop)
        return super().read(block)


class Stage:
    """A hall, and a method for each thing that a line may do or see."""

    def __init__(
        self, line: dict[str, Any], unread: Unread, folder: Path | None = None, **limits: Any
    ) -> None:
        model = line.get("model", {})
        speaker, self.draft = endless(**model), endless(**model)
        self.disk = Counted(folder, speaker) if folder is not None else None
        if self.disk is not None:
            runtime = speaker.lm.runtime
            runtime.prefix_cache = BlockStore(runtime.make_cache, 1 << 30, folder=self.disk)
        self.hall = Hall(speaker, **limits)
        self.draft.model.forget()
        self.unread = unread
        self.breaks = False
        self.rows: dict[str, Handle] = {}
        self.ran_before: dict[str, int] = {}
        self.failing: dict[str, str] = {}

    @property
    def blocks_read(self) -> int:
        return len(self.disk.reads) if self.disk is not None else 0

    def do(self, deed: list[Any]) -> None:
        verb, *given = deed
        getattr(self, verb.replace(" ", "_"))(*given)

    def submit(self, name: str, prompt: str, options: dict[str, Any]) -> None:
        given = dict(options)
        if "filters" in given:
            given["filters"] = Regex(given["filters"])
        if "hooks" in given:
            given["hooks"] = interrupting(given["hooks"]["interrupts"])
        if given.get("draft") == "model":
            given["draft"] = self.draft.lm
        if "prefix" in given:
            given["prefix"] = tokens_of(given["prefix"])
        self.rows[name] = self.hall.submit(tokens_of(prompt), **given)

    def fork(self, name: str, twins: list[str]) -> None:
        self.rows |= zip(twins, self.hall.fork(self.rows[name], len(twins)), strict=True)

    def refused(self, error: str, deed: list[Any]) -> None:
        with pytest.raises(getattr(errors, error)):
            self.do(deed)

    def steps(self, count: int) -> None:
        self.hall.steps(count)

    def finish(self) -> None:
        self.hall.finish()
        for name, handle in self.rows.items():
            if handle.closed and handle not in self.hall.errors and not handle.request.constraint:
                request = handle.request
                count, start = request.position - request.first, request.base + request.first - 1
                assert self.hall.texts[handle] == letters(count, start), name
                assert request.position == request.budget or request.finish_reason != "length"

    def _step_until(self, is_so: Callable[[], object]) -> None:
        for _ in range(5000):
            if is_so():
                return
            self.hall.step()
        raise AssertionError("it never came")

    def until_preempted(self) -> None:
        self._step_until(lambda: self.hall.stats.preempted)

    def until_said(self, names: list[str]) -> None:
        self._step_until(lambda: all(self.hall.texts[self.rows[name]] for name in names))

    def until_closed(self, names: list[str]) -> None:
        self._step_until(lambda: all(self.rows[name].closed for name in names))

    def until_reads(self, count: int) -> None:
        self._step_until(lambda: self.blocks_read >= count)

    def while_waiting(self, name: str, said: dict[str, Any]) -> None:
        while self.rows[name] in self.hall.scheduler.waiting:
            self.said(said)
            self.hall.step()

    def beside(self, names: list[str], until: Any, most: dict[str, int]) -> None:
        """Step so often, or until rows are closed or nobody waits. Meanwhile each of these gives a
        token a step, but for a ``gap`` of some, and of other things there are so many a step."""
        empty = dict.fromkeys(names, 0)
        for count in itertools.count():
            closed = isinstance(until, list) and all(self.rows[name].closed for name in until)
            if closed or count == until or (until == "nobody waits" and not self.hall.waiting):
                return
            before = self._figures()
            given = [event.handle for event in self.hall.step() for _ in event.chunks]
            for name in names:
                empty[name] = 0 if given.count(self.rows[name]) == 1 else empty[name] + 1
                assert empty[name] <= most.get("gap", 0)
            for what, figure in self._figures().items():
                assert figure - before[what] <= most.get(what, figure), what

    def _figures(self) -> dict[str, int]:
        return {
            "reads": self.blocks_read,
            "tokens": self.hall.tokens_run,
            "begun": sum(handle.cached > 0 for handle in self.rows.values()),
            "drafted": sum(map(len, self.draft.model.fed)),
        }

    def cancel(self, name: str) -> None:
        """Which waits for nothing that is run."""
        handle = self.rows.pop(name)
        self.ran_before[name] = handle.prefilled
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(mx, "eval", None)
            self.hall.scheduler.cancel(handle)
        del self.hall.texts[handle]

    def goes_on(self, name: str, letter: str) -> None:
        """From what ``gone`` has run of the same prompt."""
        known, handle = self.ran_before["gone"], self.rows[name]
        assert 0 < known == handle.usage.cached_tokens
        self.ran({letter: handle.request.base - known})

    def rewind(self, name: str, to: int) -> None:
        self.hall.rewind(self.rows[name], to)

    def aside(self, name: str) -> None:
        handle = self.rows[name]
        self.ran_before[name] = handle.kv.length
        self.hall.scheduler.set_aside(handle)
        assert not handle.kv.length

    def resume(self, name: str) -> None:
        handle = self.rows[name]
        self.hall.scheduler.resume(handle)
        self.hall.step()
        assert handle.cached >= min(self.ran_before[name], handle.request.base - 1)

    def follow(self, caches: int) -> None:
        self.hall.scheduler.follow(self.hall.speaker.lm.memory.with_caches(caches))

    def close(self) -> None:
        self.hall.scheduler.close()

    def idle(self) -> None:
        assert not self.hall.scheduler.busy and self.hall.scheduler.step() == []
        assert self.hall.stats.kv_bytes == 0

    def within(self) -> None:
        stats = self.hall.stats
        assert stats.kv_bytes + stats.cache_bytes <= stats.byte_limit

    def waiting(self, names: list[str]) -> None:
        assert [*self.hall.scheduler.waiting] == [self.rows[name] for name in names]

    def stats(self, wanted: dict[str, Any]) -> None:
        for name, number in wanted.items():
            assert fits(getattr(self.hall.stats, name), number), name

    def said(self, wanted: dict[str, Any]) -> None:
        for name, count in wanted.items():
            assert fits(len(self.hall.texts[self.rows[name]]), count), name

    def cached(self, wanted: dict[str, Any]) -> None:
        for name, count in wanted.items():
            assert fits(self.rows[name].usage.cached_tokens, count), name

    def fed(self, counts: list[int]) -> None:
        assert [len(tokens) for tokens in self.hall.speaker.model.fed] == counts

    def reads(self, count: Any) -> None:
        assert fits(self.blocks_read, count)

    def forget(self) -> None:
        self.hall.speaker.model.forget()
        self.draft.model.forget()

    def draft_ran(self, count: Any) -> None:
        assert fits(sum(map(len, self.draft.model.fed)), count)

    def draft_holds(self, nbytes: Any) -> None:
        assert fits(self.draft.lm.prefix_cache.nbytes, nbytes)

    def ran(self, wanted: dict[str, Any]) -> None:
        """How many tokens went through for rows of prompts that begin with these letters."""
        rows = [row for rows in self.hall.speaker.model.rows for row in rows]
        for letter, count in wanted.items():
            assert fits(sum(len(row) for row in rows if row[0] == ord(letter)), count), letter

    def turns(self, letters: str) -> None:
        """Whose prompt the pieces were of, by their first letters."""
        rows = [rows[0] for rows in self.hall.speaker.model.rows if len(rows[0]) > 1]
        assert "".join(chr(row[0]) for row in rows).startswith(letters)

    # what goes wrong

    def interrupted(self) -> None:
        with pytest.raises(KeyboardInterrupt):
            self.hall.finish()

    def fails(self, how: How, when: dict[str, Any], of: str = "model") -> None:
        """The model fails with some histories, or the one that drafts does."""
        left = [when.get("times", 1 << 40)]
        self.breaks = True

        def check(history: tuple[int, ...]) -> bool:
            is_ill = len(history) == when.get("length", len(history))
            is_ill = is_ill and len(history) > when.get("longer", 0)
            is_ill = is_ill and ("letter" not in when or ord(when["letter"]) in history)
            left[0] -= is_ill
            return self.breaks and is_ill and left[0] >= 0

        fail(self.draft if of == "draft" else self.hall.speaker, check, how, self.unread)

    def works(self) -> None:
        self.breaks, self.unread.failures = False, 0

    def short_of_memory(self, most: dict[str, int]) -> None:
        script = self.hall.speaker.model.script

        def short(history: tuple[int, ...]) -> Any:
            if self.hall.stats.cache_bytes > most["cached"] or len(history) > most["history"]:
                raise RuntimeError("[metal::malloc] Unable to allocate 123 bytes.")
            return script(history)

        self.hall.speaker.model.script = short

    def cache_breaks(self) -> None:
        for name in ("match", "take", "keep"):
            setattr(self.hall.scheduler.cache, name, None)

    def failed(self, wanted: dict[str, str]) -> None:
        self.failing = wanted

    @property
    def failures(self) -> dict[str, str]:
        errors = self.hall.errors
        return {
            name: type(errors[row]).__name__ for name, row in self.rows.items() if row in errors
        }


@pytest.mark.whole
@pytest.mark.parametrize("line", LINES, ids=[line["why"] for line in LINES])
def test_rows_come_and_go_as_there_is_room(
    line: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefill, "READING", 0.0)  # one block is read between two steps
    folder, unread = tmp_path if "disk" in line else None, Unread(monkeypatch)
    if folder is not None:
        before = Stage(line, unread, folder)
        for prompt in line["disk"]:
            before.hall.submit(tokens_of(prompt), max_tokens=1)
            before.hall.finish()
        before.close()
        assert before.hall.speaker.lm.prefix_cache.flush(20)
    stage = Stage(line, unread, folder, **line["limits"])
    for deed in line["do"]:
        stage.do(deed)
    assert stage.failures == stage.failing


@pytest.mark.parametrize("others", [0, 1])
def test_the_buffer_cache_is_cleared_again_and_again_while_a_prompt_is_run(
    others: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    hall = Hall(endless(), keep_prefixes=False, prefill_chunk=512)
    for _ in range(others):
        hall.submit(max_tokens=40)
    hall.steps(3)
    cleared = []
    monkeypatch.setattr(mx, "clear_cache", lambda: cleared.append(hall.tokens_run))
    hall.submit([63] * 6_500, max_tokens=2)
    while hall.waiting:
        hall.step()
    assert len(cleared) == 3
    assert all(later - before < 2_200 for before, later in itertools.pairwise(cleared))


def test_one_long_step_moves_the_mean_little_and_a_short_one_at_once() -> None:
    pace = Pace()
    pace.saw_step(1, 0.01)
    assert pace.step(30) == 0.01  # unknown numbers of rows are like the nearest
    pace.saw_step(1, 9.0)  # the machine was busy otherwise
    assert 0.01 < pace.step(1) < 0.02
    pace.saw_step(1, 0.001)
    assert pace.step(1) == 0.001
