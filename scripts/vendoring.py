"""The libraries of the page: fetched with npm, taken unchanged, and pinned by their hashes.

Owns ``manifest.json`` in the page's folder ``vendor``: which files of which packages the page has,
and the integrity of each package as the registry states it. Nothing of a package is ever run.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path, PurePosixPath

VENDOR = Path(__file__).parent.parent / "mlxgen" / "server" / "page" / "vendor"
MANIFEST = VENDOR / "manifest.json"


def taken(archive: Path, patterns: list[str]) -> dict[str, bytes]:
    """The files of an archive that match the patterns, by name; each pattern must match one."""
    found: dict[str, bytes] = {}
    with tarfile.open(archive) as tar:
        names = {name.partition("/")[2]: name for name in tar.getnames()}
        for pattern in patterns:
            matching = [name for name in names if PurePosixPath(name).match(pattern)]
            if not matching:
                raise SystemExit(f"{archive.name} has no {pattern}: correct 'take' in {MANIFEST}")
            for name in matching:
                file = tar.extractfile(names[name])
                assert file is not None, f"{name} is not a file"
                found[name] = file.read()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/vendor_page", description=__doc__)
    parser.add_argument("--pin", action="store_true", help="take what npm gives, and pin it")
    pin = parser.parse_args().pin
    manifest = json.loads(MANIFEST.read_text(encoding="utf-8"))
    files: dict[str, bytes] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for package, library in manifest["packages"].items():
            command = ["npm", "pack", f"{package}@{library['version']}"]
            command += ["--ignore-scripts", "--json", "--silent"]
            done = subprocess.run(command, cwd=scratch, capture_output=True, text=True, check=True)
            (packed,) = json.loads(done.stdout)
            wanted = packed["integrity"] if pin else library["integrity"]
            if packed["integrity"] != wanted:
                raise SystemExit(
                    f"{package} {library['version']} is not what was pinned: expected {wanted}, "
                    f"got {packed['integrity']}"
                )
            library["integrity"] = wanted
            for name, data in taken(Path(scratch, packed["filename"]), library["take"]).items():
                beside = name.removeprefix(library.get("from", "") + "/")
                files[f"{library['folder']}/{beside}"] = data
    manifest["files"] = {n: hashlib.sha256(data).hexdigest() for n, data in sorted(files.items())}
    for folder in (path for path in VENDOR.iterdir() if path.is_dir()):
        shutil.rmtree(folder)
    for name, data in files.items():
        target = VENDOR / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
    MANIFEST.write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    print(f"{len(files)} files of {len(manifest['packages'])} packages are in {VENDOR}")


if __name__ == "__main__":
    main()
