"""What a controller may ask of a branch: the protocol, and the reading of its answers.

Must never change a sequence or know how it runs (``control`` does). Invariant: a ``Decision`` that
exists can be carried out on the history that it was read for; an answer that cannot raises an
``OptionError`` whose field names the branch, for example ``branches[1].ff_tokens``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from ..errors import OptionError
from ..filters import Int32Words, word_count, words_of
from ..options.rule import integer
from ..options.table import OPTIONS
from ..tokens import Token

Mask: TypeAlias = Collection[Token] | npt.NDArray[np.bool_] | Int32Words
"""The tokens that may be sampled: ids (a list, a set, a range), an array with a ``bool`` for
each token of the vocabulary, or an array of packed ``int32`` words as filters write them."""

Path: TypeAlias = tuple[int, ...]

_COUNT = integer(None, 0)


@dataclass(frozen=True, slots=True)
class Splice:
    """What to do with a sampled token.

    - ``when_sampled``: the sampled tokens that it applies to; empty for any token.
    - ``backtrack``: how many of the newest tokens to take back, including the sampled one: 1
      replaces it.
    - ``ff_tokens``: the tokens to append after that.
    """

    when_sampled: Collection[Token] = ()
    backtrack: int = 0
    ff_tokens: Sequence[Token] = ()


@dataclass(frozen=True, slots=True)
class Branch:
    """How a sequence goes on: with one sampled token, or with a run of given tokens.

    - ``backtrack``: how many of the newest tokens to take back before anything else; tokens of
      the prompt count, too.
    - ``sample_mask``: the tokens that may be sampled. With ``None`` nothing is sampled, and
      ``ff_tokens`` has exactly one run, possibly empty, which is appended.
    - ``ff_tokens``: with a mask, runs that are appended whole if their first token is sampled.
    - ``splices``: with a mask, the first splice that matches the sampled token is applied, after
      such a run was appended.
    - ``temperature``: the temperature of this draw, instead of the option's.
    """

    backtrack: int = 0
    sample_mask: Mask | None = None
    ff_tokens: Sequence[Sequence[Token]] = ()
    splices: Sequence[Splice] = ()
    temperature: float | None = None


class Wait:
    """Returned instead of branches: the branch pauses until ``wake`` is called.

    Then its controller is asked again, with nothing taken back or appended. Several branches may
    wait for the same one. ``what`` names what is waited for; it is shown in the error that is
    raised if every branch waits.
    """

    __slots__ = ("what", "woken")

    def __init__(self, what: str) -> None:
        self.what = what
        self.woken = False

    def __repr__(self) -> str:
        return f"<Wait for {self.what}>"

    def wake(self) -> None:
        """Let the waiting branches go on; a second call does nothing."""
        self.woken = True


class Controller(Protocol):
    """Decides token by token how a sequence goes on.

    A controller may also have these methods, which are called if they exist:

    - ``bind(vocabulary, vocab_size, *, prompt, opens_text, removed)`` makes the root's controller
      of one generation, as a ``Program`` does, which has no other method. ``opens_text``: a new
      text starts after the prompt. ``removed``: with ``heal``, the prompt's end that is left out
      of ``prompt``, and that the first tokens have to spell again.
    - ``fork()`` makes the copy for a new branch; without it, ``copy.deepcopy`` does.
    - ``observe(chunk)`` gets each chunk of the branch before the next ``mid_process``.
    - ``ended(reason, error)`` is called once, when the branch has ended: with the finish reason
      of its last chunk, or with ``None`` and the error that ended it.
    """

    def mid_process(
        self, branch_idx: int, last_backtrack: int, last_append: Sequence[Token]
    ) -> list[Branch] | Wait:
        """Return how this branch goes on: an empty list stops it, several branches fork it.

        ``branch_idx`` is its index in the last fork. Since the last call, ``last_backtrack``
        tokens were taken back and then the tokens ``last_append`` appended.
        """


C = TypeVar("C", bound=Controller)
R = TypeVar("R")


class Steering(NamedTuple):
    """How one position is drawn, and what follows from the token.

    - ``words``: the tokens that may be drawn; ``None`` for all.
    - ``runs``: by their first token, the runs that are appended whole.
    - ``splices``: the first that matches is applied after that.
    """

    words: Int32Words | None = None
    temperature: float | None = None
    runs: Mapping[Token, tuple[Token, ...]] = MappingProxyType({})
    splices: tuple[Splice, ...] = ()

    @property
    def expects_run(self) -> bool:
        """Whether more than the sampled token may have to go through the model."""
        return bool(self.runs) or any(splice.ff_tokens for splice in self.splices)

    def outcome(self, token: Token) -> tuple[int, tuple[Token, ...]]:
        """How many tokens before a sampled one to take back, and what to append then."""
        run = self.runs.get(token) or (token,)
        for splice in self.splices:
            if not splice.when_sampled or token in splice.when_sampled:
                back = splice.backtrack
                return max(0, back - len(run)), (*run[: max(0, len(run) - back)], *splice.ff_tokens)
        return 0, run


class Decision(NamedTuple):
    """A checked ``Branch``: ``run`` is appended now; ``steering`` is for the token to sample."""

    backtrack: int
    run: tuple[Token, ...]
    steering: Steering | None


def decide(answer: Any, *, length: int, vocab_size: int) -> list[Decision] | Wait:
    """Read what a controller returned for a history of ``length`` tokens."""
    if isinstance(answer, Wait):
        return answer
    if not isinstance(answer, (list, tuple)):
        raise OptionError(
            "branches",
            f"expected a list of Branch, or a Wait, from mid_process, got {answer!r}; return [] "
            "to stop",
        )
    return _each("branches", answer, lambda branch: _decision(branch, length, vocab_size))


def name_of(path: Path) -> Path:
    """A branch's name: the indexes of its forks without zeros at the end.

    The first branch of a fork stays its parent.
    """
    end = len(path)
    while end and path[end - 1] == 0:
        end -= 1
    return path[:end]


def token_ids(field: str, tokens: Any, vocab_size: int) -> tuple[Token, ...]:
    """The ids of a collection of tokens. OptionError if they are something else."""
    if isinstance(tokens, str) or not hasattr(tokens, "__iter__"):
        raise OptionError(field, f"expected a collection of token ids, got {tokens!r}")
    ids = tuple(tokens)
    plain = True
    for token in ids:
        if type(token) is not int:
            if isinstance(token, bool) or not hasattr(token, "__index__"):
                raise OptionError(field, f"expected token ids, got {token!r}")
            plain = False
        if not 0 <= token < vocab_size:
            raise OptionError(field, f"expected token ids from 0 to {vocab_size - 1}, got {token}")
    return ids if plain else tuple(map(int, ids))


# ---- reading an answer -------------------------------------------------------------------------


def _each(name: str, items: Sequence[Any], read: Callable[[Any], R]) -> list[R]:
    """The results of ``read`` for all items; its errors get the item's name."""
    found = []
    for i, item in enumerate(items):
        try:
            found.append(read(item))
        except OptionError as error:
            field = f"{name}[{i}].{error.field}".removesuffix(".")
            problem = str(error).removeprefix(f"{error.field}: ")
            raise OptionError(field, problem) from None
    return found


def _decision(branch: Any, length: int, vocab_size: int) -> Decision:
    if not isinstance(branch, Branch):
        raise OptionError("", f"expected a Branch, got {branch!r}")
    mask, temperature = branch.sample_mask, branch.temperature
    runs = _runs(branch.ff_tokens, vocab_size)
    if mask is None:
        if len(runs) != 1:
            raise OptionError(
                "ff_tokens",
                f"expected exactly one run without a sample_mask, got {len(runs)}; pass the run to "
                "append, or a sample_mask",
            )
        for field, value in (("splices", branch.splices), ("temperature", temperature)):
            if value is not None and value != ():
                raise OptionError(
                    field,
                    f"nothing is sampled without a sample_mask, got {value!r}; leave it out, or "
                    "pass a sample_mask",
                )
        return Decision(_back(branch, length, runs[0]), runs[0], None)
    back = _back(branch, length, ())
    if temperature is not None:
        temperature = OPTIONS["temperature"].rule.check("temperature", temperature)
    by_first: dict[Token, tuple[Token, ...]] = {}
    for run in runs:
        if not run:
            raise OptionError("ff_tokens", "expected runs of at least one token, got an empty one")
        if by_first.setdefault(run[0], run) is not run:
            raise OptionError("ff_tokens", f"two runs start with token {run[0]}; pass one of them")
    most = length - back + 1  # with the sampled one
    splices = _each("splices", branch.splices, lambda splice: _splice(splice, most, vocab_size))
    return Decision(
        back, (), Steering(_words(mask, vocab_size), temperature, by_first, tuple(splices))
    )


def _splice(splice: Any, length: int, vocab_size: int) -> Splice:
    if not isinstance(splice, Splice):
        raise OptionError("", f"expected a Splice, got {splice!r}")
    when = frozenset(token_ids("when_sampled", splice.when_sampled, vocab_size))
    tokens = token_ids("ff_tokens", splice.ff_tokens, vocab_size)
    return Splice(when, _back(splice, length, tokens), tokens)


def _back(of: Branch | Splice, length: int, run: Sequence[Token]) -> int:
    """How many of ``length`` tokens to take back; one must be left, or be in the ``run``."""
    back = of.backtrack
    if back.__class__ is not int or back:
        back = _COUNT.check("backtrack", back)
    if back > length - (not run):
        raise OptionError(
            "backtrack",
            f"taking back {back} of the {length} tokens that there are then leaves none; keep one, "
            "or append some without sampling",
        )
    return back


def _words(mask: Any, vocab_size: int) -> Int32Words | None:
    """Any form of a mask as packed words; ``None`` if it allows every token."""
    if isinstance(mask, range) and mask == range(vocab_size):
        return None
    mask = getattr(mask, "words", mask)
    count = word_count(vocab_size)
    if not isinstance(mask, np.ndarray):
        words = words_of(token_ids("sample_mask", mask, vocab_size), vocab_size)
    elif mask.dtype == np.bool_ and mask.shape == (vocab_size,):
        words = words_of(np.flatnonzero(mask), vocab_size)
    elif mask.dtype in (np.int32, np.uint32) and mask.shape == (count,):
        words = mask.view(np.int32).copy()  # the caller may change it before the draw
        if vocab_size % 32:
            words[-1] &= np.int32((1 << vocab_size % 32) - 1)
    else:
        raise OptionError(
            "sample_mask",
            f"expected an array of bool [{vocab_size}] (a flag for each token) or of int32 "
            f"[{count}] (packed words), got {mask.dtype} {list(mask.shape)}; pass ids as a list or "
            "a set",
        )
    if not words.any():
        raise OptionError(
            "sample_mask", "the mask allows no token; allow one, or return [] to stop"
        )
    return words


def _runs(runs: Any, vocab_size: int) -> list[tuple[Token, ...]]:
    expected = "expected a list of runs such as [[1, 2], [3]], got"
    if not isinstance(runs, Sequence) or isinstance(runs, (str, bytes)):
        raise OptionError("ff_tokens", f"{expected} {runs!r}")
    if any(hasattr(run, "__index__") for run in runs):
        raise OptionError("ff_tokens", f"{expected} a single run {runs!r}")
    return [token_ids(f"ff_tokens[{i}]", run, vocab_size) for i, run in enumerate(runs)]
