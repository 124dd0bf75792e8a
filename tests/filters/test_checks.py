"""The checks that come with mlxgen."""

from __future__ import annotations

import sys

import pytest

from mlxgen import OptionError
from mlxgen.filters.checks import command, json_lines, python

FINE = (
    "def f(x):\n",
    "def f(x):\n    return x\n",
    "a = (1,\n",
    "import os.path\nos.getcwd()\n",
    "def g():\n    return later()\n",
    "class A:\n    def b(self):\n        return self.c\n",
    "for i in range(3):\n    print(i)\n",
    'def f():\n    """A text\n',
    "try:\n    pass\nexcept OSError as error:\n    print(error)\n",
    "print([a for a, *_ in [(1, 2)]])\n",
    "def f(a, *b, **c):\n    return a, b, c\n",
    "from os import *\ngetcwd()\n",
    "match 5:\n    case [x, *rest]:\n        print(x, rest)\n",
    "Some prose.\n```python\nx = 1\n```\nmore of it here, which is not checked\n",
    "<think>\nThey want a loop.\n</think>\n\nHere it is:\n\n```\nwhile True:\n    pass\n```\n",
    "in Python, you can write: it works\n",
)
WRONG = {
    "def f(x):\n    retrn x y\n": "not Python",
    "def f(x):\n    return y\n": "not defined: y",
    "x = foo\n": "not defined: foo",
    "    return 1\n": "not Python: unexpected indent",
    "def f():\n    x = 1\n  y = 2\n": "not Python: unindent",
    "Some prose.\n```python\nx = zz\n": "not defined: zz",
    "def f(:\n": "not Python",
    "Foo(1\n)\n": "not defined: Foo",
    "x y\n# so\nz = = 1\n```\nx y\n": "not Python",
}


@pytest.mark.parametrize("code", FINE)
def test_python_that_may_go_on_like_this_is_fine(code: str) -> None:
    lines = code.splitlines(keepends=True)
    for i in range(len(lines)):
        assert python(lines[i], "".join(lines[:i])) is None


@pytest.mark.parametrize("code", WRONG)
def test_python_that_is_wrong_is_complained_about(code: str) -> None:
    *before, piece = code.splitlines(keepends=True)
    assert (python(piece, "".join(before)) or "").startswith(WRONG[code])


def test_json_lines() -> None:
    assert json_lines('{"a": 1}\n', "") is None
    assert json_lines("\n", "") is None
    assert (json_lines("{'a': 1}\n", "") or "").startswith("not JSON: ")


def test_a_command_reads_the_piece_and_its_status_decides() -> None:
    check = command(
        f"{sys.executable} -c 'import sys; t = sys.stdin.read(); print(t); sys.exit(\"x\" in t)'"
    )
    assert check("a\n", "x") is None
    assert check("x y\n", "") == "x y"
    assert check("Prose about x:\n```js\na\n```\nand\n```\nb\n```\nx\n", "") is None
    assert check("Prose:\n```js\na\n```\nand\n```\nx y\n```\n", "") == "x y"


@pytest.mark.parametrize("line", ["", "'"])
def test_a_command_that_is_none_is_refused(line: str) -> None:
    with pytest.raises(OptionError, match="check: "):
        command(line)
