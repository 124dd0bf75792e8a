"""The bytes of each token of a tokenizer.

A token's piece is the text that it adds when it is decoded after an anchor token. If that is only a
part of a character, the bytes come from the token's string, which either is bytes or spells them in
the byte-level alphabet or as one of SentencePiece's byte-fallback tokens.

A tokenizer that splits text into byte-level strings but has a decoder of another kind (a converted
Mistral Tekken) is read by its strings: its ``decode`` does not give the text back.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

_SAMPLE = 256
_FALLBACK = re.compile("<0x([0-9A-Fa-f]{2})>")


class Pieces(NamedTuple):
    """What each token contributes to a text."""

    middle: Sequence[bytes]  # in the middle of a text; b"" for ids without a token
    strips_space: bool  # at the start of a text, a leading space is dropped
    byte_tokens: frozenset[int]  # byte-fallback tokens such as <0x41>


def read_pieces(tokenizer: Any, size: int, added: frozenset[int]) -> Pieces:
    """The pieces of a Hugging Face tokenizer whose ids are below ``size``; ``added``: its added
    tokens."""
    strings = _strings(tokenizer, size)
    if _decoder_is_of_another(tokenizer):
        spelled = (
            string.encode() if token in added else _from_byte_level(string)
            for token, string in enumerate([str(each or "") for each in strings])
        )
        return Pieces(tuple(spelled), False, frozenset())
    before = _anchor(tokenizer, strings)
    start = decode(tokenizer, before) if before else ""
    middle = [string if isinstance(string, bytes) else b"" for string in strings]
    told = [token for token, string in enumerate(strings) if isinstance(string, str)]
    for token, text in zip(told, _decoded(tokenizer, before, told, added), strict=True):
        own = text[len(start) :] if text.startswith(start) else decode(tokenizer, [token])
        middle[token] = _bytes(strings[token]) if "\ufffd" in own else own.encode()

    spaced = [token for token, piece in enumerate(middle) if piece[:1] == b" "][:_SAMPLE]
    strips = any(decode(tokenizer, [token])[:1] != " " for token in spaced)
    byte_tokens = {
        token
        for token, string in enumerate(strings)
        if isinstance(string, str) and string[:3] == "<0x" and _bytes(string) == middle[token]
    }
    return Pieces(tuple(middle), strips, frozenset(byte_tokens))


def _strings(tokenizer: Any, size: int) -> list[str | bytes | None]:
    try:
        return list(tokenizer.convert_ids_to_tokens(list(range(size))))
    except Exception:  # slow tokenizers fail on ids without a token, each in its own way
        return [_string(tokenizer, token) for token in range(size)]


def _string(tokenizer: Any, token: int) -> str | bytes | None:
    try:
        string: str | bytes | None = tokenizer.convert_ids_to_tokens(token)
    except Exception:
        return None
    return string


# ---- strings that are bytes --------------------------------------------------------------------


def _decoder_is_of_another(tokenizer: Any) -> bool:
    """Whether the tokenizer splits text into byte-level strings that its decoder cannot join."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    before, after = getattr(backend, "pre_tokenizer", None), getattr(backend, "decoder", None)
    if before is None:
        return False
    splits = {step["type"] for step in flat(before, "pretokenizers")}
    joins = set() if after is None else {step["type"] for step in flat(after, "decoders")}
    return "ByteLevel" in splits and "ByteLevel" not in joins


def flat(part: Any, parts: str) -> list[dict[str, Any]]:
    """The steps of a component of a fast tokenizer; ``parts`` is the key of a sequence's steps."""
    steps = [json.loads(part.__getstate__())]
    while any(step["type"] == "Sequence" for step in steps):
        steps = [inner for step in steps for inner in step.get(parts, [step])]
    return steps


def _byte_level_table() -> dict[int, int]:
    """Maps the characters with which byte-level tokenizers spell bytes to those bytes.

    Printable Latin-1 characters stand for themselves, and the others are numbered from 256
    on (the scheme of GPT-2). Characters below 256 that spell no byte map to 0xFFFF.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    table = dict.fromkeys(others, 0xFFFF)
    table.update({byte: byte for byte in printable})
    table.update({256 + index: byte for index, byte in enumerate(others)})
    return table


_BYTE_LEVEL = _byte_level_table()


def _from_byte_level(string: str) -> bytes:
    try:
        return string.translate(_BYTE_LEVEL).encode("latin-1")
    except UnicodeEncodeError:  # an added token, in plain text
        return string.encode()


def _bytes(string: str | bytes | None) -> bytes:
    """The bytes that a token's string spells; b"" without a token."""
    if not isinstance(string, str):
        return string or b""
    found = _FALLBACK.fullmatch(string)
    return bytes([int(found[1], 16)]) if found else _from_byte_level(string)


# ---- decoding ----------------------------------------------------------------------------------


def decode(tokenizer: Any, tokens: Sequence[int]) -> str:
    """The text of ``tokens`` as the tokenizer decodes them, special tokens included."""
    text: str = tokenizer.decode(
        list(tokens), skip_special_tokens=False, clean_up_tokenization_spaces=False
    )
    return text


def _decoded(
    tokenizer: Any, before: list[int], tokens: list[int], added: frozenset[int]
) -> list[str]:
    """The text of ``before`` and each token. A fast tokenizer's backend decodes all of them in one
    batch if a sample agrees with ``decode`` (with many added tokens, in which tokenizers differ);
    otherwise each takes about 10 µs."""
    runs = [[*before, token] for token in tokens]
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None and hasattr(backend, "decode_batch"):
        texts: list[str] = backend.decode_batch(runs, skip_special_tokens=False)
        apart = max(1, len(runs) // _SAMPLE)
        more = [i for i, token in enumerate(tokens) if token in added][:_SAMPLE]
        sample = [*range(0, len(runs), apart), *more]
        if all(decode(tokenizer, runs[i]) == texts[i] for i in sample):
            return texts
    return [decode(tokenizer, run) for run in runs]


def _anchor(tokenizer: Any, strings: Sequence[str | bytes | None]) -> list[int]:
    """A list of one ordinary token whose text does not depend on the next one, or an empty list."""
    for token, string in enumerate(strings):
        if not string or not (string[-1:].isascii() and string[-1:].isalpha()):
            continue  # cheap, and rules out most tokens, and <0x41>
        text = decode(tokenizer, [token])
        if text.isascii() and text.isalpha() and decode(tokenizer, [token] * 2).startswith(text):
            return [token]
    return []
