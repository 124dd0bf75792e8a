"""Programs over the library that do their worst, or meet a file that somebody has damaged.

Owns their text. Must never know what they should print. Each runs in a process of its own, in which
``lm`` is the demo model, ``model`` a copy of its folder and ``refused`` names the error of a call.
"""

from __future__ import annotations

import subprocess
import sys

from .hostile_clients import Run
from .process import Process


def library(code: str, seconds: float = 60.0) -> Run:
    """What a program prints, in a process of its own; or how it ended."""

    def run(server: Process) -> str:
        del server
        done = subprocess.run(
            [sys.executable, "-c", _HEAD + code], capture_output=True, text=True, timeout=seconds
        )
        if done.returncode:
            return f"status {done.returncode}: {done.stderr.strip().splitlines()[-1:]}"
        return done.stdout.strip()

    return run


_HEAD = """
import os, pickle, re, shutil, tempfile, threading, time
from pathlib import Path
import mlx.core as mx
import mlxgen
lm = mlxgen.load()
folder = Path(tempfile.mkdtemp())
model = folder / "model"
shutil.copytree(Path(mlxgen.__file__).parent / "demo" / "model", model)
asked = [{"role": "user", "content": "Hello"}]
def refused(work):
    try:
        work()
    except mlxgen.MlxgenError as error:
        return type(error).__name__
    return "taken"
"""

EMPTY_TEMPLATE = """
(model / "chat_template.jinja").write_text("")
print(refused(lambda: mlxgen.load(model).generate(asked, max_tokens=2)))
"""

DEEP_CONFIG = """
(model / "config.json").write_text('{"a": ' + "[" * 100_000 + "]" * 100_000 + "}")
print(refused(lambda: mlxgen.load(model)))
"""

TWO_THREADS = """
stream = lm.stream("Once", max_tokens=300, ignore_eos=True)
seen = []
def use():
    try:
        for chunk in stream:
            pass
    except mlxgen.MlxgenError as error:
        seen.append(type(error).__name__)
    finally:
        mx.clear_streams()  # as every thread that has generated does before it ends
threads = [threading.Thread(target=use) for _ in range(2)]
[t.start() for t in threads]; [t.join() for t in threads]
print(*seen)
"""

PICKLE = """
errors = []
def catch(work):
    try:
        work()
    except mlxgen.MlxgenError as error:
        errors.append(error)
catch(lambda: lm.generate("a", top_p=7))
def back():
    stream = lm.stream("a", max_tokens=8, ignore_eos=True)
    next(stream)
    stream.rewind(tokens=50)
catch(back)
same = [str(pickle.loads(pickle.dumps(e))) == str(e) for e in errors]
print("equal" if len(same) == 2 and all(same) else f"not equal {same}")
"""

BANNED = """
start = time.process_time()
try:
    lm.generate("Once upon a time", max_tokens=120, filters=[mlxgen.Regex("(a{11}b)*")],
                banned=[re.compile("(.*a){12}c")])
except mlxgen.MlxgenError:
    pass
seconds = time.process_time() - start
print("quick" if seconds < 3 else "slow", f"{seconds:.1f} s")
"""

FLIPS = """
path = folder / "prefix"
lm.save_prefix("Once upon a time there was a fox", path)
data = path.read_bytes()
taken = 0
for i in range(60):
    broken = bytearray(data)
    broken[len(data) * (2 * i + 1) // 120] ^= 1 << (i % 8)
    path.write_bytes(broken)
    taken += refused(lambda: lm.load_prefix(path)) == "taken"
print(f"{taken} taken")
"""

NO_NAME = 'print(refused(lambda: lm.save_prefix("Once", "")))'
