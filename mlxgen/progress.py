"""Progress bars on standard error: for many prompts, and for reading weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from time import monotonic
from typing import Protocol, TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
)

from .engine import Batch
from .loading.memory import in_words

LINES_APART = 5.0  # seconds


class _Sized(Protocol):
    @property
    def nbytes(self) -> int: ...


S = TypeVar("S", bound=_Sized)


def progress_bar(total: int | None, console: Console | None = None) -> Callable[[Batch], object]:
    """A watcher for ``Batch`` that shows how many of ``total`` prompts are done, and the speed."""
    progress = Progress(
        TextColumn("prompts"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[tokens]:,} tokens, {task.fields[speed]:.0f} per second"),
        TimeElapsedColumn(),
        console=console or Console(stderr=True),
        refresh_per_second=4,
    )
    task = progress.add_task("prompts", total=total, tokens=0, speed=0.0)
    progress.start()

    def watch(batch: Batch) -> None:
        elapsed = progress.tasks[0].elapsed or 0.0
        speed = batch.tokens / elapsed if elapsed else 0.0
        progress.update(task, completed=batch.done, tokens=batch.tokens, speed=speed)
        if not batch.busy:
            progress.stop()

    return watch


def reading(arrays: Sequence[S], console: Console | None = None) -> Iterator[S]:
    """Yields the arrays, and takes each for read when the next one is asked for; a bar shows their
    bytes, or without a terminal, as under ``mlx.launch``, a line every few seconds."""
    console, total = console or Console(stderr=True), sum(array.nbytes for array in arrays)
    if not console.is_terminal:
        yield from _reading_in_lines(arrays, total, console)
        return
    columns = TextColumn("weights"), BarColumn(), DownloadColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console, refresh_per_second=4) as progress:
        task = progress.add_task("weights", total=total)
        for array in arrays:
            yield array
            progress.advance(task, array.nbytes)


def _reading_in_lines(arrays: Sequence[S], total: int, console: Console) -> Iterator[S]:
    done, said = 0, monotonic()
    for array in arrays:
        yield array
        done += array.nbytes
        if monotonic() - said >= LINES_APART:
            said = monotonic()
            console.print(f"weights: {in_words(done)} of {in_words(total)}", highlight=False)
