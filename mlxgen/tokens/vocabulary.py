"""A tokenizer as mlxgen sees it: token ids, the bytes of each, and text to tokens and back.

``Vocabulary`` holds the immutable facts of one tokenizer. Invariant: a token's piece never depends
on its neighbours, apart from the space that some tokenizers drop at the start of a text. The text
of a sequence is its pieces, joined and decoded as UTF-8. End-of-sequence tokens have a piece but
add no text.
"""

from __future__ import annotations

import codecs
import json
import threading
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

import numpy as np
import numpy.typing as npt

from ..errors import OptionError, PromptError
from ..open_files import limit_kept
from .pieces import decode, flat, read_pieces

if TYPE_CHECKING:  # mlx-lm imports MLX, which this room does not need
    from mlx_lm.tokenizer_utils import TokenizerWrapper
    from transformers import PreTrainedTokenizerBase

Token: TypeAlias = int
TokenIds: TypeAlias = npt.NDArray[np.int32]
T = TypeVar("T")
Q = TypeVar("Q", bound=Sequence[object])

_CONTINUING = bytes(range(0x80, 0xC0))  # bytes of a character after its first
_TOO_LONG = "sequence-length-is-longer-than-the-specified-maximum"
_CACHE = "_mlxgen_vocabulary"  # the attribute of a tokenizer that holds its vocabulary


class Vocabulary:
    """The immutable facts of one tokenizer. Make it with ``Vocabulary.of``.

    tokenizer     the mlx-lm wrapper that it was made from
    size          the highest known token id + 1, added tokens included
    eos           every end-of-sequence token
    special       added tokens that are flagged special, and ``eos``
    added         all added tokens
    strips_space  the text drops the leading space of its first token (SentencePiece)
    pieces        the bytes of each token in the middle of a text; b"" for ids without a token
    """

    def __init__(self, wrapper: TokenizerWrapper) -> None:
        tokenizer = wrapper._tokenizer
        added: Mapping[Token, Any] = getattr(tokenizer, "added_tokens_decoder", None) or {}
        self.tokenizer: TokenizerWrapper = wrapper
        self.size: int = 1 + max(
            len(tokenizer) - 1, max(tokenizer.get_vocab().values(), default=-1), *added, -1
        )
        self.eos: frozenset[Token] = _eos_of(wrapper)
        self.added: frozenset[Token] = frozenset(added)
        self.special: frozenset[Token] = self.eos.union(
            token for token, content in added.items() if content.special
        )
        read = read_pieces(tokenizer, self.size, self.added)
        self.pieces: Sequence[bytes] = read.middle
        self.strips_space: bool = read.strips_space
        self._byte_tokens = read.byte_tokens
        self._length = len(tokenizer)
        # The tokenizer would warn about texts beyond its own limit, which is often not the model's.
        getattr(tokenizer, "deprecation_warnings", {})[_TOO_LONG] = True
        self._derived: dict[Hashable, Any] = {}
        self._lock = threading.RLock()

    @classmethod
    def of(cls, tokenizer: AnyTokenizer) -> Vocabulary:
        """The vocabulary of a tokenizer, made once and kept with it; a ``Vocabulary`` as it is.

        It is made again when the tokenizer's tokens or end tokens have changed. A tokenizer without
        mlx-lm's wrapper gets one. OptionError if ``tokenizer`` is not a tokenizer.
        """
        if isinstance(tokenizer, Vocabulary):
            return tokenizer
        if not hasattr(tokenizer, "convert_ids_to_tokens"):
            kind = type(tokenizer).__name__
            raise OptionError(
                "tokenizer", f"expected a tokenizer, got {kind}; pass the one from mlx_lm.load"
            )
        known: _Kept | None = vars(tokenizer).get(_CACHE)
        if known is not None and known.vocabulary._is_of(tokenizer):
            return known.vocabulary
        vocabulary = cls(_wrapped(tokenizer))
        vars(tokenizer)[_CACHE] = _Kept(vocabulary)
        return vocabulary

    def _is_of(self, tokenizer: Any) -> bool:
        """Whether this still describes ``tokenizer`` (a copy of one carries the original's)."""
        wrapper = self.tokenizer
        if tokenizer is not wrapper and tokenizer is not wrapper._tokenizer:
            return False
        return self.eos == _eos_of(wrapper) and self._length == len(wrapper)

    def __copy__(self) -> Vocabulary:  # copies of objects that hold a vocabulary share it
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Vocabulary:
        return self

    def __reduce__(self) -> tuple[Callable[..., Vocabulary], tuple[TokenizerWrapper]]:
        return Vocabulary.of, (self.tokenizer,)

    def __repr__(self) -> str:
        return (
            f"<Vocabulary of {self.size} tokens, {len(self.added)} added, eos {sorted(self.eos)}>"
        )

    # ---- tokens and their bytes ----------------------------------------------------------

    def piece(self, token: Token) -> bytes:
        """The bytes of a token in the middle of a text; b"" for ids outside the vocabulary."""
        return self.pieces[token] if 0 <= token < self.size else b""

    def opening(self, token: Token) -> bytes:
        """The bytes of a token at the start of a text."""
        piece = self.piece(token)
        if not piece or not self.strips_space:
            return piece
        text = decode(self.tokenizer._tokenizer, [token])
        return piece if "\ufffd" in text else text.encode()

    def has(self, token: Token) -> bool:
        """Whether ``token`` is one of the tokenizer's ids and means the same in this vocabulary."""
        return 0 <= token < self.size

    def is_ordinary(self, token: Token) -> bool:
        """Whether a token is plain text: it has bytes, and is neither special nor an end."""
        return bool(self.piece(token)) and token not in self.special

    @cached_property
    def _sorted(self) -> tuple[list[bytes], TokenIds]:
        """The pieces and the ids of the ordinary tokens, sorted by their bytes.

        Among tokens with the same bytes, byte-fallback tokens come last.
        """
        bytes_last = self._byte_tokens
        tokens = [token for token in range(self.size) if self.is_ordinary(token)]
        if bytes_last:
            tokens.sort(key=bytes_last.__contains__)
        tokens.sort(key=self.pieces.__getitem__)
        ids = np.array(tokens, dtype=np.int32)
        ids.flags.writeable = False
        return [self.pieces[token] for token in tokens], ids

    def starting_with(self, prefix: bytes) -> TokenIds:
        """Ordinary tokens whose bytes start with ``prefix``, sorted by their bytes."""
        pieces, ids = self._sorted
        start = bisect_left(pieces, prefix)
        end = bisect_right(pieces, prefix, start, key=lambda piece: piece[: len(prefix)])
        return ids[start:end]

    def spelling(self, data: bytes) -> TokenIds:
        """All ordinary tokens with exactly these bytes; byte-fallback tokens come last."""
        pieces, ids = self._sorted
        start = bisect_left(pieces, data)
        return ids[start : bisect_right(pieces, data, start)]

    def token_of(self, data: bytes) -> Token | None:
        """The ordinary token with exactly these bytes."""
        tokens = self.spelling(data)
        return int(tokens[0]) if len(tokens) else None

    def derived(self, key: Hashable, build: Callable[[], T]) -> T:
        """``build()``, called once for each key; for tables made from this vocabulary."""
        with self._lock:
            if key not in self._derived:
                self._derived[key] = build()
            return cast(T, self._derived[key])

    # ---- text to tokens --------------------------------------------------------------------

    def encode(self, text: str, *, special: bool = True) -> list[Token]:
        """The tokens of a raw prompt, as in mlx-lm.

        The tokenizer adds its special tokens (usually a begin token), unless the text already
        starts with the begin token or ``special`` is False.
        """
        begin = self.tokenizer.bos_token
        add = special and (begin is None or not text.startswith(begin))
        return [int(token) for token in self.tokenizer.encode(text, add_special_tokens=add)]

    def continue_with(self, data: bytes) -> list[Token]:
        """Tokens that spell ``data`` in the middle of a sequence.

        There is no begin token, no leading space and no added token: ``<tool_call>`` is spelled
        out. The tokens are the tokenizer's own if they give exactly these bytes, otherwise the
        longest that fit, as for bytes that are not UTF-8. PromptError if the vocabulary cannot
        spell ``data``.
        """
        start = len(data) - len(data.lstrip(_CONTINUING))
        try:
            text, used = codecs.utf_8_decode(data[start:], "strict", False)
        except UnicodeDecodeError:
            return self.longest(data)
        end = start + used
        if not text:
            tokens = []
        elif self.inner is not None:
            # ``encode`` would hold the GIL, for a second for each megabyte of text.
            tokens = self.inner.encode_batch_fast([text], add_special_tokens=False)[0].ids
        else:
            tokens = self.tokenizer.encode(text, add_special_tokens=False)
        spelled = b"".join(map(self.piece, tokens))
        if spelled != data[start:end] or not self.special.isdisjoint(tokens):
            return self.longest(data)
        return self.longest(data[:start]) + tokens + self.longest(data[end:])

    @cached_property
    def inner(self) -> Any | None:
        """The fast tokenizer without added tokens and without special treatment of a text's start.

        It shares the model, and keeps only the normaliser's plain replacements, because the bytes
        must not change. None for tokenizers written in Python.
        """
        backend = getattr(self.tokenizer._tokenizer, "backend_tokenizer", None)
        if backend is None or not hasattr(backend, "pre_tokenizer"):
            return None
        from tokenizers import Tokenizer, normalizers, pre_tokenizers

        inner = Tokenizer(backend.model)
        if backend.normalizer is not None:
            steps = flat(backend.normalizer, "normalizers")
            steps = [step for step in steps if step["type"] == "Replace"]
            inner.normalizer = _sequence(normalizers, "normalizers", steps)
        if backend.pre_tokenizer is not None:
            steps = flat(backend.pre_tokenizer, "pretokenizers")
            steps = [{**step, **_NO_LEADING_SPACE.get(step["type"], {})} for step in steps]
            inner.pre_tokenizer = _sequence(pre_tokenizers, "pretokenizers", steps)
        return inner

    def longest(self, data: bytes) -> list[Token]:
        """As ``continue_with``, but greedy: always the longest token that fits."""
        pieces, ids = self._sorted
        tokens = []
        while data:
            prefix = data
            # The last piece that sorts up to `prefix` is a prefix of it; or else no such piece is
            # longer than what the two have in common.
            while True:
                index = bisect_right(pieces, prefix) - 1
                if index < 0:
                    raise PromptError(f"the tokenizer has no token for the bytes {data[:8]!r}")
                if prefix.startswith(pieces[index]):
                    break
                prefix = prefix[: in_common(prefix, pieces[index])]
            tokens.append(int(ids[bisect_left(pieces, pieces[index])]))
            data = data[len(pieces[index]) :]
        return tokens

    # ---- tokens to text --------------------------------------------------------------------

    def decode(self, tokens: Iterable[Token]) -> str:
        """The text of a whole sequence, with special tokens and without end tokens."""
        pieces: list[bytes] = []
        for token in tokens:
            piece = b"" if token in self.eos else self.piece(token)
            if piece:
                pieces.append(piece if pieces else self.opening(token))
        return b"".join(pieces).decode("utf-8", "replace")


class _Kept:
    """Keeps a vocabulary as an attribute of its tokenizer; pickled with it, it becomes ``None``."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        return type(None), ()


if TYPE_CHECKING:
    AnyTokenizer: TypeAlias = Vocabulary | TokenizerWrapper | PreTrainedTokenizerBase
else:
    AnyTokenizer = Any

_NO_LEADING_SPACE: Mapping[str, Mapping[str, Any]] = {
    "ByteLevel": {"add_prefix_space": False},
    "Metaspace": {"prepend_scheme": "never"},
}


def in_common(one: Q, other: Q) -> int:
    """The length of the longest common prefix of two sequences."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _eos_of(wrapper: TokenizerWrapper) -> frozenset[Token]:
    return frozenset(int(token) for token in wrapper.eos_token_ids)


def _wrapped(tokenizer: Any) -> TokenizerWrapper:
    with limit_kept():  # importing mlx-lm changes the limit of open files
        from mlx_lm.tokenizer_utils import TokenizerWrapper

    return tokenizer if isinstance(tokenizer, TokenizerWrapper) else TokenizerWrapper(tokenizer)


def _sequence(kind: Any, name: str, steps: Sequence[Mapping[str, Any]]) -> Any:
    """A component of a fast tokenizer that applies these steps in order."""
    part = kind.Sequence([])
    part.__setstate__(json.dumps({"type": "Sequence", name: steps}).encode())
    return part
