"""Drafters that compute logits: of a second model, or of a head of the same one.

Owns the draws from these logits. Must never know whether a draft was accepted. The masks of a
request's filters, its penalties and biases apply to the draft as well, so nothing is drafted that
it could not draw. A position is drawn with the request's own random numbers: if both agree on it,
the same token comes out.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence

import mlx.core as mx

from ...sampling import DrawRow, Sampler
from ...tokens import Token
from ..history import History
from ..kv import KV, PREFILL_STEP, Device, Fed, Footprint, Later, Unread
from ..prefix.ends import LEAST
from ..prefix.store import BlockStore
from ..request.leads import plain_draw
from ..request.request import Request
from .acceptance import Acceptance, Experience, Price
from .ahead import walk
from .drafter import Drafter
from .guess import Guess


class ModelledDrafter(Drafter):
    """See the module. ``width`` is that of the main model's logits."""

    most = 4  # each takes a pass, and later ones are accepted less often

    def __init__(
        self, device: Device, sampler: Sampler, width: int, acceptance: Acceptance
    ) -> None:
        super().__init__(acceptance)
        self._device = device
        self._sampler = sampler
        self._width = width

    @abstractmethod
    def _catch_up(self, request: Request) -> mx.array | None:
        """Come to the end of the history; returns logits [1, vocab] there, submitted or not, or
        None if it cannot."""

    @abstractmethod
    def _run(self, token: Fed) -> mx.array:
        """Go on with a drafted token; returns logits [1, vocab] after it."""

    def chances(self, request: Request, count: int) -> Sequence[float]:
        return self.acceptance.chances(count)

    def early(self, request: Request, count: int) -> Sequence[float]:
        self.acceptance.hope()
        return self.acceptance.chances(count)  # whatever the next token is

    def price(self, plain: float) -> Price:
        return self.acceptance.experience.price(plain)

    def took(self, count: int, seconds: float, plain: float) -> None:
        self.acceptance.experience.took(count, seconds, plain)

    def propose(self, request: Request, count: int) -> Guess | None:
        if not request.is_free(count + 1):
            logits = self._catch_up(request)
            return None if logits is None else self._draw_in_steps(request, logits, count)
        draws = [plain_draw(request, request.position + i) for i in range(count + 1)]
        first = self._begun(request, draws[0])
        if first is None:
            logits = self._catch_up(request)
            if logits is None:
                return None
            first = self._submit(logits, draws[0])
        return self._draw_freely(first, draws)

    def _begun(self, request: Request, draw: DrawRow) -> Fed | None:
        """The token after the history, if it was drawn before it was known what comes before."""
        return None

    def _draw_freely(self, first: Fed, draws: Sequence[DrawRow]) -> Guess:
        """Submit all draws at once: each depends only on the one before."""
        tokens = [first]
        for draw in draws[1:-1]:
            tokens.append(self._submit(self._run(tokens[-1]), draw))
        return Guess(tokens, draws)

    def _submit(self, logits: mx.array, draw: DrawRow) -> Fed:
        token = self._draw(logits, draw)
        self._device.submit([token])
        return Later(Unread(token, self._device), 0)

    def _draw_in_steps(self, request: Request, logits: mx.array, count: int) -> Guess | None:
        """Draw one token after another, each under the mask that the ones before it leave."""
        drawn: list[Token] = []
        at = logits

        def choose(draw: DrawRow) -> Token | None:
            nonlocal at
            if len(drawn) == count:
                return None
            if drawn:
                at = self._run(drawn[-1])
            token = self._device.read(self._draw(at, draw))[0]
            if token < 0:
                return None
            drawn.append(token)
            return token

        walk(request, choose)
        return Guess(drawn) if drawn else None

    def _draw(self, logits: mx.array, draw: DrawRow) -> mx.array:
        """A token [1], drawn as the request draws it, but only from the likeliest candidates."""
        return self._sampler.sketch(_widened(logits, self._width), draw)


class ModelDrafter(ModelledDrafter):
    """Drafts with a smaller model of the same tokenizer; ``cache`` may be that of its prefixes."""

    name = "model"
    goes_on = True

    def __init__(
        self,
        device: Device,
        sampler: Sampler,
        *,
        width: int,
        footprint: Footprint,
        experience: Experience | None = None,
        piece: Callable[[int], int] = lambda held: PREFILL_STEP,
        cache: BlockStore | None = None,
    ) -> None:
        super().__init__(device, sampler, width, Acceptance(experience))
        self.cache = cache
        self._footprint = footprint
        self._piece = piece  # how many tokens it has the memory to run after so many others
        self._kv = KV(device)
        self._early: tuple[DrawRow, Fed] | None = None  # a token, and the draw that it is of

    def go_on(self, request: Request, came: Sequence[Token]) -> None:
        pending = self._kv.align(request.history, came=came)
        if len(pending) <= len(came):
            draw = plain_draw(request, request.position + len(came))
            self._early = draw, self._submit(self._run_all(pending), draw)

    def _begun(self, request: Request, draw: DrawRow) -> Fed | None:
        early, self._early = self._early, None
        history = request.history
        if early is None or early[0] != draw or self._kv.length != len(history):
            return None
        return early[1] if self._kv.common(history) == len(history) else None

    def missing(self, history: History) -> int:
        return len(history) - self._kv.common(history)

    def follow(self, history: History, count: int) -> None:
        self._begin(history)
        piece = self._kv.align(history)[:-1][: min(count, self._piece(self._kv.length))]
        if piece:
            self._kv.run(piece, wanted=0)
            self._kv.submit()
            self._kv.snapshot()

    def keep(self, history: History, room: int) -> None:
        if self.cache is not None and self._kv.common(history) >= LEAST:
            self._kv.keep(history, room)

    def restart(self) -> None:
        self._kv.restart()
        self._early = None

    @property
    def nbytes(self) -> int:
        return self._kv.nbytes

    def nbytes_at(self, length: int) -> int:
        return self._footprint.alone(length)

    def fork(self) -> ModelDrafter:
        twin = ModelDrafter.__new__(ModelDrafter)
        ModelledDrafter.__init__(
            twin, self._device, self._sampler, self._width, self.acceptance.fork()
        )
        twin._footprint, twin._piece = self._footprint, self._piece
        twin._kv, twin._early = self._kv.fork(), None
        twin.cache = self.cache
        return twin

    def _catch_up(self, request: Request) -> mx.array:
        history = request.history
        self._begin(history)
        while len(pending := self._kv.align(history)) > (piece := self._piece(self._kv.length)):
            self.follow(history, piece)
            self._kv.wait()
        logits = self._run_all(pending)
        self._kv.expect_rewinds()
        return logits

    def _begin(self, history: History) -> None:
        """Take what is kept of a history of which nothing is held."""
        if self.cache is not None and not self._kv.length and self.cache.match(history) >= LEAST:
            self._kv.take(history)

    def _run(self, token: Fed) -> mx.array:
        return self._run_all([token])

    def _run_all(self, tokens: Sequence[Fed]) -> mx.array:
        logits = self._kv.run(tokens)
        self._kv.snapshot()
        return logits


def _widened(logits: mx.array, width: int) -> mx.array:
    """Logits [1, any] as [1, width]: models with the same tokenizer pad it differently."""
    if logits.shape[-1] == width:
        return logits
    if logits.shape[-1] > width:
        return logits[:, :width]
    short = width - logits.shape[-1]
    return mx.pad(logits, [(0, 0), (0, short)], constant_values=-mx.inf)
