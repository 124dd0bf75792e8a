"""How the tokens of a tokenizer become bytes.

Reads token strings: byte-level alphabets, SentencePiece's word mark and byte-fallback
tokens, and the mark that continues a WordPiece word. For any other tokenizer, it asks
``decode``.

A tokenizer that splits text into byte-level strings and has the decoder of another kind
(Mistral's Tekken, converted) is read as it splits: what its ``decode`` gives is not the text.

Invariant: any other reading is used only if it agrees with the tokenizer's own ``decode`` on a
sample of its tokens; otherwise every token is decoded after an anchor token, and what it
adds there is its piece. That last resort loses the bytes of tokens that hold part of a
character, unless the token's string is bytes or spells them in the byte-level alphabet.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import methodcaller
from typing import Any

Opening = Callable[[int, bytes], bytes]
"""From a token and its piece to the bytes that it gives as the first token of a text."""

_SAMPLE = 256
_FALLBACK = re.compile("<0x([0-9A-Fa-f]{2})>")


@dataclass(frozen=True, slots=True)
class Pieces:
    """What each token contributes to a text."""

    middle: Sequence[bytes]  # in the middle of a text; b"" for ids without a token
    opening: Opening  # at the start of a text
    strips_space: bool  # opening drops a leading space
    byte_tokens: frozenset[int]  # byte-fallback tokens such as <0x41>


@dataclass(frozen=True, slots=True)
class _Reading:
    """One way to read a token's string. ``mark`` is dropped from a text's first token."""

    to_bytes: Callable[[str], bytes]
    strips_space: bool = False
    mark: str = ""
    byte_fallback: bool = False


def read_pieces(tokenizer: Any, size: int, added: Iterable[int]) -> Pieces:
    """The pieces of a Hugging Face tokenizer with token ids below ``size``.

    ``added`` are its added tokens: tokenizers differ in them, so the sample has more of them.
    """
    strings = _strings(tokenizer, size)
    if _decoder_is_of_another(tokenizer):
        plain = frozenset(added)  # written as they are
        spelled = [
            each.encode() if token in plain and isinstance(each, str) else each
            for token, each in enumerate(strings)
        ]
        return _apply(_Reading(_from_byte_level), spelled)
    anchor = _anchor(tokenizer, strings)
    chosen = {*range(0, size, max(1, size // _SAMPLE)), *sorted(added)[:_SAMPLE]}
    sample = [token for token in sorted(chosen) if strings[token] is not None]
    for reading in _readings(tokenizer):
        pieces = _apply(reading, strings)
        if _agrees(tokenizer, pieces, sample, anchor):
            return pieces
    return _ask(tokenizer, strings, anchor)


# ---- token strings -------------------------------------------------------------------


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


# ---- readings ------------------------------------------------------------------------


def _readings(tokenizer: Any) -> list[_Reading]:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None or not hasattr(backend, "decoder"):
        # Written in Python (tiktoken, sentencepiece): the strings show what they are.
        return [_Reading(_from_byte_level), _SENTENCEPIECE, _SENTENCEPIECE_STRIPPED]
    if backend.decoder is None:
        return []
    reading = _from_decoder(flat(backend.decoder, "decoders"))
    return [] if reading is None else [reading]


def _decoder_is_of_another(tokenizer: Any) -> bool:
    """Whether text is split into byte-level strings that the decoder does not know."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    before, after = getattr(backend, "pre_tokenizer", None), getattr(backend, "decoder", None)
    if before is None or after is None:
        return False
    splits = {step["type"] for step in flat(before, "pretokenizers")}
    joins = {step["type"] for step in flat(after, "decoders")}
    return "ByteLevel" in splits and "ByteLevel" not in joins


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


def _fallback_byte(string: str) -> bytes | None:
    """The byte of a token such as ``<0x0A>``."""
    found = _FALLBACK.fullmatch(string)
    return bytes([int(found[1], 16)]) if found else None


def _from_sentencepiece(string: str) -> bytes:
    return _fallback_byte(string) or string.replace("▁", " ").encode()


_SENTENCEPIECE = _Reading(_from_sentencepiece, byte_fallback=True)
_SENTENCEPIECE_STRIPPED = _Reading(_from_sentencepiece, strips_space=True, byte_fallback=True)


def _from_decoder(steps: Iterable[dict[str, Any]]) -> _Reading | None:
    """The reading that a fast tokenizer's decoder does; None if tokens are not independent."""
    edits: list[Callable[[str], str]] = []
    byte_fallback = byte_level = fused = strips_space = False
    mark = ""
    for step in steps:
        kind = step.get("type")
        if kind == "Fuse":
            fused = True
        elif kind == "Strip" and fused and step.get("stop") == 0 and step.get("start") in (0, 1):
            if step["content"] != " ":
                return None
            strips_space = step["start"] == 1
        elif fused:
            return None
        elif kind == "Replace" and "String" in step["pattern"]:
            edits.append(methodcaller("replace", step["pattern"]["String"], step["content"]))
        elif kind == "ByteFallback":
            byte_fallback = True
        elif kind == "ByteLevel" and not byte_fallback:
            byte_level = fused = True
        elif kind == "Metaspace":
            edits.append(methodcaller("replace", step["replacement"], " "))
            mark = "" if step.get("prepend_scheme") == "never" else step["replacement"]
        else:
            return None
    if mark and (strips_space or byte_fallback):
        return None

    def to_bytes(string: str) -> bytes:
        for edit in edits:
            string = edit(string)
        if byte_level:
            return _from_byte_level(string)
        return (_fallback_byte(string) if byte_fallback else None) or string.encode()

    return _Reading(to_bytes, strips_space, mark, byte_fallback)


def flat(part: Any, parts: str) -> list[dict[str, Any]]:
    """The steps of a part of a fast tokenizer; those of a sequence are under ``parts``."""
    steps = [json.loads(part.__getstate__())]
    while any(step["type"] == "Sequence" for step in steps):
        steps = [inner for step in steps for inner in step.get(parts, [step])]
    return steps


def _apply(reading: _Reading, strings: Sequence[str | bytes | None]) -> Pieces:
    to_bytes = reading.to_bytes
    middle = tuple(
        b"" if string is None else string if isinstance(string, bytes) else to_bytes(string)
        for string in strings
    )
    byte_tokens = frozenset(
        token
        for token, string in enumerate(strings)
        if reading.byte_fallback and isinstance(string, str) and _fallback_byte(string)
    )
    if reading.strips_space:
        return Pieces(middle, lambda _, piece: piece.removeprefix(b" "), True, byte_tokens)
    if not reading.mark:
        return Pieces(middle, lambda _, piece: piece, False, byte_tokens)

    def opening(token: int, piece: bytes) -> bytes:
        string = strings[token]
        return to_bytes(string.replace(reading.mark, "")) if isinstance(string, str) else piece

    return Pieces(middle, opening, True, byte_tokens)


# ---- agreement with decode, and asking it -----------------------------------------------


def _decode(tokenizer: Any, tokens: list[int]) -> str:
    text: str = tokenizer.decode(
        tokens, skip_special_tokens=False, clean_up_tokenization_spaces=False
    )
    return text


def _anchor(tokenizer: Any, strings: Sequence[str | bytes | None]) -> int | None:
    """An ordinary token whose text does not depend on what follows it."""
    for token, string in enumerate(strings):
        if not string or not (string[-1:].isascii() and string[-1:].isalpha()):
            continue  # rules out most of them, and <0x41>
        text = _decode(tokenizer, [token])
        if text.isascii() and text.isalpha() and _decode(tokenizer, [token] * 2).startswith(text):
            return token
    return None


def _agrees(tokenizer: Any, pieces: Pieces, sample: Iterable[int], anchor: int | None) -> bool:
    """Whether these pieces, alone and after the anchor, are what ``decode`` gives."""
    for token in sample:
        piece = pieces.middle[token]
        if not _decodes_to(tokenizer, [token], pieces.opening(token, piece)):
            return False
        if anchor is not None:
            start = pieces.opening(anchor, pieces.middle[anchor])
            if not _decodes_to(tokenizer, [anchor, token], start + piece):
                return False
    return True


def _decodes_to(tokenizer: Any, tokens: list[int], data: bytes) -> bool:
    return _decode(tokenizer, tokens) == data.decode("utf-8", "replace")


def _ask(tokenizer: Any, strings: Sequence[str | bytes | None], anchor: int | None) -> Pieces:
    """Pieces from the tokenizer's ``decode`` alone: about 10 µs per token."""
    before = [] if anchor is None else [anchor]
    start = _decode(tokenizer, before) if before else ""

    def piece(token: int, string: str | bytes | None) -> bytes:
        if string is None:
            return b""
        if isinstance(string, bytes):
            return string
        text = _decode(tokenizer, [*before, token])
        text = text[len(start) :] if text.startswith(start) else _decode(tokenizer, [token])
        return _from_byte_level(string) if "\ufffd" in text else text.encode()

    def opening(token: int, middle: bytes) -> bytes:
        text = _decode(tokenizer, [token])
        return middle if "\ufffd" in text else text.encode()

    middle = tuple(piece(token, string) for token, string in enumerate(strings))
    strips = any(
        piece.startswith(b" ") and not _decode(tokenizer, [token]).startswith(" ")
        for token, piece in enumerate(middle[:_SAMPLE])
    )
    return Pieces(middle, opening, strips, frozenset())
