"""A progress bar for many prompts, on standard error."""

from __future__ import annotations

from collections.abc import Callable

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from .engine import Batch


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
