"""How both command lines refuse arguments: in one line, with a "did you mean"."""

from __future__ import annotations

import argparse
import difflib
from typing import NoReturn

_ALIKE = 0.75  # of difflib's ratio; the dashes count
_UNKNOWN = "unrecognized arguments: "


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line on standard error, without the usage."""

    def __init__(self, prog: str, description: str, epilog: str) -> None:
        super().__init__(
            prog=prog,
            description=description,
            epilog=epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )

    def error(self, message: str) -> NoReturn:
        """Print what is wrong and exit with status 2."""
        if message.startswith(_UNKNOWN):
            message += self._meant(message.removeprefix(_UNKNOWN).split())
        self.exit(2, f"{self.prog}: error: {message} (--help lists the options)\n")

    def _meant(self, unknown: list[str]) -> str:
        options = [word.partition("=")[0] for word in unknown if word.startswith("--")]
        known = self._option_string_actions
        near = [difflib.get_close_matches(word, known, 1, _ALIKE) for word in options]
        meant = dict.fromkeys(match for found in near for match in found)
        return f"; did you mean {' and '.join(meant)}?" if meant else ""
