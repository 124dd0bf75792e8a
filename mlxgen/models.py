"""The models on this machine: ``python -m mlxgen.models``, installed as ``mlxgen.models``.

Owns the list of models, and the output of each command. The models are those in the cache of
huggingface-hub, which other programs use, too. Must never load a model.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from .errors import LoadError, MlxgenError, ModelNotFoundError
from .loading.checkpoint import read_json
from .loading.memory import context_left, in_words, memory_limit, needed_by
from .loading.model_config import kv_bytes_of, max_context_of

NAME = "mlxgen.models"
EXAMPLES = """\
examples:
  mlxgen.models                                      what is here, and whether it fits
  mlxgen.models get mlx-community/Qwen3-4B-4bit      download a model
  mlxgen.models rm mlx-community/Qwen3-4B-4bit       delete it
"""


class Model(NamedTuple):
    """A model in the cache, with its size and when it was last used; ``problem``: why it cannot be
    loaded, or empty."""

    name: str
    nbytes: int
    used: float
    weights: int
    config: dict[str, Any]
    problem: str = ""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit status."""
    parser = argparse.ArgumentParser(
        NAME,
        description="List, download and delete models.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    commands.add_parser("list", help="list the models on this machine (the default)")
    for name, text in (("get", "download a model"), ("rm", "delete a model")):
        commands.add_parser(name, help=text).add_argument("name", metavar="OWNER/NAME")
    given = parser.parse_args(argv)
    try:
        if given.command == "get":
            get(given.name)
        elif given.command == "rm":
            remove(given.name)
        else:
            show()
    except MlxgenError as error:
        print(f"{NAME}: error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"{NAME}: stopped; get it again to go on where it stopped", file=sys.stderr)
        return 130
    return 0


def show() -> None:
    """Print a table of the models, the most recently used first."""
    device = memory_limit()[0]
    models = sorted(cached(), key=lambda model: model.used, reverse=True)
    if not models:
        print(f"no models yet; try: {NAME} get mlx-community/Qwen3-4B-4bit")
        return
    rows = [("MODEL", "SIZE", "LAST USED", f"ON THIS MACHINE ({in_words(device)})")]
    for model in models:
        day = datetime.fromtimestamp(model.used).strftime("%Y-%m-%d")
        rows.append((model.name, in_words(model.nbytes), day, model.problem or fits(model, device)))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=False))
        print("  ".join([*cells, row[3]]))


def fits(model: Model, device: int) -> str:
    """Whether a model fits into a device's memory, and how much context then has room."""
    if needed_by(model.weights) > device:
        return "too large"
    each, most = kv_bytes_of(model.config), max_context_of(model.config)
    if each is None:
        return "fits"
    left = context_left(model.weights, each, device)
    if most is not None and left >= most:
        return f"fits, with its whole context of {most:,} tokens"
    if left < 1024:
        return "fits, but leaves no room for a context"
    return f"fits, with a context of about {left // 1024 * 1024:,} tokens"


def get(name: str) -> None:
    """Download a model, with progress bars, and say whether it fits."""
    from .loading.hub import download

    folder = download(name)
    model = next((each for each in cached() if each.name == name), None)
    told = "" if model is None else f" ({model.problem or fits(model, memory_limit()[0])})"
    print(f"{name} is in {folder}{told}")


def remove(name: str) -> None:
    """Delete a model with all its revisions."""
    from huggingface_hub import scan_cache_dir

    for repo in _scanned():
        if repo.repo_id == name:
            scan_cache_dir().delete_revisions(*(r.commit_hash for r in repo.revisions)).execute()
            print(f"deleted {name}, which frees {in_words(repo.size_on_disk)}")
            return
    raise ModelNotFoundError(f"{name} is not on this machine; {NAME} lists what is")


def cached() -> Iterator[Model]:
    """The models in the cache: every repository with a ``config.json``."""
    for repo in _scanned():
        revisions = sorted(repo.revisions, key=lambda each: float(each.last_modified))
        newest = next((r for r in reversed(revisions) if "main" in r.refs), revisions[-1])
        folder = Path(newest.snapshot_path)
        try:
            config = dict(read_json(folder / "config.json"))
        except (LoadError, OSError):
            continue
        files = [path for path in folder.glob("*.safetensors") if path.exists()]
        weights = sum(path.stat().st_size for path in files)
        problem = "" if files else "no weights for MLX; get it again"
        nbytes = int(repo.size_on_disk)
        yield Model(repo.repo_id, nbytes, repo.last_accessed, weights, config, problem)


def _scanned() -> Iterator[Any]:
    from huggingface_hub import scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        found = scan_cache_dir()
    except CacheNotFound:  # nothing was ever fetched
        return
    yield from (repo for repo in found.repos if repo.repo_type == "model" and repo.revisions)


if __name__ == "__main__":
    sys.exit(main())
