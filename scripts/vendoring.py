"""The libraries of the page: fetched with npm, taken unchanged, and pinned by their hashes.

Owns ``manifest.json`` in the page's folder ``vendor``: which files of which packages the page has,
and the integrity of each package as the registry states it. Nothing of a package is ever run.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path, PurePosixPath
from typing import Any

VENDOR = Path(__file__).parent.parent / "mlxgen" / "server" / "page" / "vendor"
MANIFEST = VENDOR / "manifest.json"


def fetched(package: str, version: str, folder: Path) -> bytes:
    """The package's archive, fetched by npm without running its scripts."""
    command = ["npm", "pack", f"{package}@{version}", "--ignore-scripts", "--json", "--silent"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    (packed,) = json.loads(done.stdout)
    return (folder / str(packed["filename"])).read_bytes()


def integrity_of(archive: bytes) -> str:
    return "sha512-" + base64.b64encode(hashlib.sha512(archive).digest()).decode()


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


def placed(name: str, library: dict[str, Any]) -> str:
    """Where a package's file lies below ``vendor``."""
    beside = name.removeprefix(library.get("from", "") + "/")
    return f"{library['folder']}/{beside}"


def vendor(pin: bool) -> None:
    manifest = json.loads(MANIFEST.read_text(encoding="utf-8"))
    files: dict[str, bytes] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for package, library in manifest["packages"].items():
            archive = fetched(package, library["version"], Path(scratch))
            integrity = integrity_of(archive)
            if pin:
                library["integrity"] = integrity
            elif integrity != library["integrity"]:
                raise SystemExit(
                    f"{package} {library['version']} is not what was pinned: expected "
                    f"{library['integrity']}, got {integrity}"
                )
            path = Path(scratch) / f"{library['folder']}.tgz"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(archive)
            for name, data in taken(path, library["take"]).items():
                files[placed(name, library)] = data
    hashes = {name: hashlib.sha256(data).hexdigest() for name, data in sorted(files.items())}
    if pin:
        manifest["files"] = hashes
    elif hashes != manifest["files"]:
        raise SystemExit("the packages' files are not those of manifest.json; --pin takes them")
    for folder in (path for path in VENDOR.iterdir() if path.is_dir()):
        shutil.rmtree(folder)
    for name, data in files.items():
        target = VENDOR / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
    MANIFEST.write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    print(f"{len(files)} files of {len(manifest['packages'])} packages are in {VENDOR}")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="scripts/vendor_page", description=__doc__)
    parser.add_argument("--pin", action="store_true", help="take what npm gives, and pin it")
    vendor(parser.parse_args(arguments).pin)


if __name__ == "__main__":
    main()
