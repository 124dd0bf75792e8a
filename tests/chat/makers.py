"""Model families that mlx-lm has no parser for: how they write, and small templates after theirs.

The templates in ``makers.json`` are written anew, as short as what they are to show allows: which
marks a maker's template writes, and whether it takes the arguments of a call as an object or as
text.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from mlx_lm.tokenizer_utils import TokenizerWrapper, _infer_tool_parser
from tokenizers import AddedToken

from mlxgen.chat.dialect import Dialect
from mlxgen.tokens import Vocabulary
from tests.fakes import byte_level_tokenizer


def _python(name: str, arguments: dict[str, Any]) -> str:
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"


def _tags(open: str, key: str, after: str, close: str) -> Callable[[str, dict[str, Any]], str]:
    def written(name: str, arguments: dict[str, Any]) -> str:
        parts = [open % name]
        for each, value in arguments.items():
            is_text = isinstance(value, str)
            kind = str(is_text).lower()
            parts += [key % {"key": each, "kind": kind}, value if is_text else json.dumps(value)]
            parts.append(after)
        return "".join([*parts, close])

    return written


_WRITES = {
    "python": _python,
    "dsml": _tags(
        '<｜DSML｜invoke name="%s">\n',
        '<｜DSML｜parameter name="%(key)s" string="%(kind)s">',
        "</｜DSML｜parameter>\n",
        "</｜DSML｜invoke>",
    ),
    "seed": _tags(
        "<seed:tool_call>\n<function=%s>\n",
        "<parameter=%(key)s>",
        "</parameter>\n",
        "</function>\n</seed:tool_call>",
    ),
}


@dataclass(frozen=True)
class Maker:
    """A family: its template, its added ``tokens``, and how it writes.

    Calls are each written by ``call``, with ``around`` them all and ``between`` them (None: there
    is one call in an answer). ``thinks`` surrounds thoughts and comes before text and calls.
    ``text`` surrounds text. ``past`` is how the template writes a call and its result, and
    ``leads`` whether text may come before a call.
    """

    template: list[str]
    tokens: list[str]
    call: str
    around: tuple[str, str] = ("", "")
    between: str | None = None
    thinks: tuple[str, str] | None = None
    text: tuple[str, str] = ("", "")
    past: str = ""
    leads: bool = True
    enforced: bool = True

    def written(self, *calls: tuple[str, dict[str, Any]], thought: str = "", text: str = "") -> str:
        """An answer with calls of these functions."""
        parts = []
        if thought:
            assert self.thinks is not None
            parts.append(self.thinks[0] + thought + self.thinks[1])
        if text:
            parts.append(self.text[0] + text + self.text[1])
        if calls:
            inner = (self.between or "").join(self._call(*call) for call in calls)
            parts.append(self.around[0] + inner + self.around[1])
        return "".join(parts)

    def _call(self, name: str, arguments: dict[str, Any]) -> str:
        if self.call in _WRITES:
            return _WRITES[self.call](name, arguments)
        return self.call.replace("{name}", name).replace("{arguments}", json.dumps(arguments))


MAKERS: Mapping[str, Maker] = {
    name: Maker(**made)
    for name, made in json.loads((Path(__file__).parent / "makers.json").read_text()).items()
}


@cache
def vocabulary_of(name: str) -> Vocabulary:
    """Tokens of bytes and of a family's marks, with its template."""
    maker, tokenizer = MAKERS[name], byte_level_tokenizer()._tokenizer
    backend = tokenizer.backend_tokenizer
    backend.add_special_tokens([AddedToken(text, normalized=False) for text in maker.tokens])
    tokenizer.chat_template = "\n".join(maker.template)
    assert _infer_tool_parser(tokenizer) is None, "mlx-lm has a parser for it"
    return Vocabulary.of(TokenizerWrapper(tokenizer))


@cache
def dialect_of(name: str) -> Dialect:
    return Dialect.of(vocabulary_of(name))
