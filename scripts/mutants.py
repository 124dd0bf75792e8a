"""Counts how many small faults in the code the tests find: ``scripts/test --mutants N``.

Cosmic Ray makes the faults: each changes one operator, constant or keyword. N of them are drawn
for each room, always the same ones while the code is unchanged, and each is tried in a copy of
the working tree against the tests of its room. ``--like`` draws the faults of an earlier report
first, so that two commits can be compared on the same faults: a fault is identified by its
function, its operator and the text of its line, even if the file was moved.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from cosmic_ray.commands.init import init
from cosmic_ray.modules import find_modules
from cosmic_ray.mutating import mutate_and_test, mutate_code
from cosmic_ray.plugins import get_operator
from cosmic_ray.work_db import WorkDB
from cosmic_ray.work_item import MutationSpec, TestOutcome

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "mlxgen"
# For each room, its code and the tests that have to find its faults
ROOMS = {
    code.name: (f"mlxgen/{code.relative_to(PACKAGE)}", [f"tests/{code.relative_to(PACKAGE)}"])
    for code in sorted([*PACKAGE.glob("*/"), *PACKAGE.glob("engine/*/")])
    if code.name not in ("demo", "engine") and (ROOT / "tests" / code.relative_to(PACKAGE)).is_dir()
}
ROOMS["sampling"][1].append("tests/engine/test_sampling.py")
ROOMS["terminal"][1].append("tests/test_generate.py")
# Changes that usually make no difference: in annotations, and identity in place of equality
NO_FAULTS = re.compile(r"core/ReplaceBinaryOperator_BitOr_|core/ReplaceComparison.*_Is(Not)?$")
SEED = "mlxgen"
LEAST_SECONDS = 60  # the least time limit of a run; otherwise three times what a good one takes


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/test --mutants")
    parser.add_argument("count", type=int, metavar="N", help="how many faults to try in each room")
    parser.add_argument("rooms", nargs="*", metavar="ROOM", help=f"of {', '.join(ROOMS)}: or all")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the report there as well")
    parser.add_argument("--like", type=Path, metavar="FILE", help="draw those of this report first")
    parser.add_argument("--python", required=True, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if unknown := set(options.rooms) - set(ROOMS):
        parser.error(f"expected rooms of {', '.join(ROOMS)}, got {', '.join(sorted(unknown))}")
    earlier = json.loads(options.like.read_text()) if options.like else []

    with tempfile.TemporaryDirectory(prefix="mlxgen-mutants-") as folder:
        copy_tree(Path(folder))
        os.chdir(folder)
        os.environ["PYTHONPATH"] = os.pathsep.join([folder, str(Path(folder, "scripts"))])
        report = []
        for room in options.rooms or ROOMS:
            for record in tried(room, options.count, options.python, earlier):
                report.append(record)
                if options.json:  # after each fault, in case the run is stopped
                    options.json.write_text(json.dumps(report, indent=1) + "\n")
    show(report, earlier)


def copy_tree(folder: Path) -> None:
    """Copy the files of the working tree that Git knows or would add."""
    command = ["git", "-C", str(ROOT), "ls-files", "-z", "-co", "--exclude-standard"]
    for name in subprocess.check_output(command, text=True).split("\0"):
        if name and (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)


def tried(
    room: str, count: int, python: str, earlier: list[dict[str, str]]
) -> Iterator[dict[str, str]]:
    """A record of each fault drawn in a room: the fault, and whether the tests found it."""
    code, tests = ROOMS[room]
    arguments = ["-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--hypothesis-seed=0"]
    command = shlex.join([python, *arguments, *tests])
    start = time.monotonic()
    subprocess.run(shlex.split(command), check=True, stdout=subprocess.DEVNULL)
    limit = max(LEAST_SECONDS, 3 * (time.monotonic() - start))

    wanted = [known["fault"] for known in earlier if known["room"] == room]
    for fault, mutation in drawn(code, count, wanted):
        result = mutate_and_test([mutation], command, limit)
        outcome = "missed" if result.test_outcome is TestOutcome.SURVIVED else "found"
        if result.output == "timeout":
            outcome = "out of time"
        elif result.test_outcome not in (TestOutcome.SURVIVED, TestOutcome.KILLED):
            raise SystemExit(f"{fault}: not tried: {result.output}")
        change = [line for line in (result.diff or "").splitlines() if re.match(r"[-+][^-+]", line)]
        place = f"{mutation.module_path}:{mutation.start_pos[0]}"
        print(f"{outcome:11} {place}", *change, sep="\n  ", flush=True)
        yield {"room": room, "fault": fault, "place": place, "outcome": outcome}


def drawn(code: str, count: int, wanted: list[str]) -> list[tuple[str, MutationSpec]]:
    """``count`` faults in ``code``, the ``wanted`` ones first, at most one for each place."""
    with tempfile.TemporaryDirectory() as folder:
        faults = WorkDB(Path(folder, "faults.sqlite"), WorkDB.Mode.create)
        init(sorted(find_modules([Path(code)])), faults, {})
        mutations = [mutation for item in faults.work_items for mutation in item.mutations]
        faults.close()
    mutations.sort(key=lambda each: (each.module_path, each.start_pos, each.operator_name))

    lines = {path: path.read_text().splitlines() for path in {one.module_path for one in mutations}}
    seen: Counter[str] = Counter()
    named = {}
    for mutation in mutations:
        operator = mutation.operator_name.removeprefix("core/")
        line = lines[mutation.module_path][mutation.start_pos[0] - 1].strip()
        fault = f"{mutation.definition_name or ''}: {operator}: {line}"
        seen[fault] += 1
        named[f"{fault} ({seen[fault]})"] = mutation

    ranks = {fault: rank for rank, fault in enumerate(wanted)}
    chosen: dict[object, tuple[str, MutationSpec]] = {}
    for fault in sorted(named, key=lambda fault: (ranks.get(fault, len(ranks)), by_chance(fault))):
        mutation = named[fault]
        place = (mutation.module_path, mutation.start_pos)
        if len(chosen) < count and place not in chosen and changes_something(mutation):
            chosen[place] = (fault, mutation)
    return list(chosen.values())


def changes_something(mutation: MutationSpec) -> bool:
    """Whether a fault counts: it compiles, and is not in an annotation."""
    if NO_FAULTS.match(mutation.operator_name):
        return False
    operator = get_operator(mutation.operator_name)(**mutation.operator_args)
    code = mutate_code(mutation.module_path.read_text(), operator, mutation.occurrence)
    try:
        compile(code, str(mutation.module_path), "exec")
    except SyntaxError:
        return False
    return True


def by_chance(fault: str) -> str:
    return hashlib.sha256(f"{SEED} {fault}".encode()).hexdigest()


def show(report: list[dict[str, str]], earlier: list[dict[str, str]]) -> None:
    before = {(known["room"], known["fault"]): known["outcome"] for known in earlier}
    print(
        f"\n{'':8} {'found':>12}" + (f" {'both have':>12} {'then':>8} {'now':>8}" if before else "")
    )
    for room in (*dict.fromkeys(each["room"] for each in report), "all"):
        of_room = [each for each in report if room in (each["room"], "all")]
        line = f"{room:8} {share([each['outcome'] for each in of_room]):>12}"
        if before:
            both = [each for each in of_room if (each["room"], each["fault"]) in before]
            then = [before[each["room"], each["fault"]] for each in both]
            now = [each["outcome"] for each in both]
            line += f" {len(both):>12} {share(then):>8} {share(now):>8}"
        print(line)


def share(outcomes: list[str]) -> str:
    return f"{sum(outcome != 'missed' for outcome in outcomes)} of {len(outcomes)}"


if __name__ == "__main__":
    main()
