"""The push interface: the rules of a generation for callers who run the model themselves.

Must never hold a model or a cache. Invariant: every push uses exactly one position of the context,
the one where the history ends.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any, Unpack, get_args

import mlx.core as mx
import numpy as np

from ..chat.dialect import ending_turns
from ..errors import OptionError, StateError
from ..filters import Int32Words
from ..options.table import GenerationOptions, takes_options
from ..sampling import Sampler
from ..tokens import Token, Vocabulary
from .chunk import Chunk, FinishReason, Usage
from .options import Options
from .pulled import OneAtATime
from .request.accept import accept, end, push, rewind, start, take
from .request.leads import forced_run, next_draw, next_mask, xtc_special
from .request.prompt import AnyPrompt, Prompt
from .request.request import Request
from .step.drawn import Drawn, DrawnView


class Session:
    """Push logits or tokens in, get chunks out, by the same rules as ``Stream``.

    ``tokenizer`` is one of mlx-lm or of Hugging Face, or a ``Vocabulary``. ``prompt`` may be left
    out if its text does not matter (no healing, no penalties on it). ``vocab_size`` is the width
    of the logits if that differs from the size of the tokenizer. The options are those of
    ``LanguageModel.stream``, except ``draft`` and ``prompt_logprobs``.

    The caller runs the model; ``keep`` and ``pending`` say what its cache has to hold::

        while session.finish_reason is None:
            trim_the_cache_to(session.keep)
            logits = run_the_model(session.pending)      # of the last position, [vocab]
            chunk = session.push_logits(logits)
            print(chunk.text, end="")

    If a ban or a hook takes tokens back, ``chunk.rewound`` says how many, and ``keep`` and
    ``pending`` go back with them. Tokens that filters force are not appended automatically:
    ``forced()`` returns them, and ``push_token`` takes them.

    A session may be used from any thread, but by one call at a time: a call that comes before
    another one has returned, from another thread or from a hook, raises ``StateError``.
    """

    __slots__ = ("_held", "_request", "_sampler", "_turn")

    @takes_options
    def __init__(
        self,
        tokenizer: Any,
        *,
        prompt: AnyPrompt | None = None,
        vocab_size: int | None = None,
        **options: Unpack[GenerationOptions],
    ) -> None:
        vocabulary = ending_turns(Vocabulary.of(tokenizer))
        checked = Options.of(options)
        width = vocab_size if vocab_size is not None else vocabulary.size
        checked.check_vocabulary(width)
        if prompt is None and checked.heal:
            raise OptionError(
                "heal", "expected a prompt to heal, got none; use Session(tokenizer, prompt=...)"
            )
        refused = {
            "prompt_logprobs": (checked.prompt_logprobs is not None, "nothing can be scored"),
            "draft": (checked.draft not in ("auto", "off"), "nothing can be drafted"),
            "prediction": (bool(checked.prediction), "nothing can be drafted"),
        }
        for name, (wanted, why) in refused.items():
            if wanted:
                raise OptionError(
                    name,
                    f"a session does not run the model, so {why} for it; leave it out, or use "
                    "LanguageModel.stream",
                )
        unknown = Prompt((), opens_text=True, is_known=False)
        read = unknown if prompt is None else Prompt.of(prompt, vocabulary, width=width)
        self._request = Request(
            read,
            checked,
            vocabulary,
            width,
            budget=checked.max_tokens if checked.max_tokens is not None else 1 << 40,
            seed=checked.some_seed(),
            queued=False,
        )
        start(self._request)
        self._sampler = Sampler(width, xtc_special=xtc_special(vocabulary))
        self._turn = OneAtATime("session")
        self._held = 0  # positions of the history that the caller's cache holds

    @property
    def history(self) -> list[Token]:
        """All tokens: the prompt, without those that healing took back, and the generated ones."""
        return list(self._request.history)

    @property
    def tokens(self) -> list[Token]:
        """The tokens generated so far, including ``prefix``."""
        return self._request.tokens

    @property
    def text(self) -> str:
        """The text delivered so far."""
        return self._request.outbox.text

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why the session ended; ``None`` until then."""
        return self._request.finish_reason

    @property
    def seed(self) -> int:
        """The seed of the draws, even if none was given."""
        return self._request.seed

    @property
    def keep(self) -> int:
        """How many positions of the caller's cache are still valid; trim the cache to them."""
        return max(0, min(self._held, len(self._request.history) - 1))

    @property
    def pending(self) -> list[Token]:
        """The tokens to run next, after the first ``keep``; push the logits of the last one."""
        return self._request.history[self.keep :]

    @property
    def usage(self) -> Usage:
        """The tokens used so far. Passes and times stay 0: a session does not run the model."""
        return self._request.usage

    def mask(self) -> Int32Words | None:
        """The tokens allowed next: [ceil(vocab_size / 32)] int32, bit t % 32 of word t // 32.

        ``None`` if all are allowed. Raises ``DeadEndError`` if none is.
        """
        with self._turn:
            return next_mask(self._request)

    def forced(self) -> list[Token]:
        """The tokens that must come next, possibly none: the filters allow no others, only one way
        to a valid end is left, or the thinking budget is spent."""
        with self._turn:
            run, retries = list(forced_run(self._request)), self._request.retries
            banned = run and run[0] in retries.at(self._request.position).excluded
            return [] if banned else run

    def push_logits(self, logits: Any) -> Chunk:
        """Sample a token from the logits of the next position; returns its chunk.

        ``logits`` is an MLX or NumPy array of any float type, [vocab_size] or [1, vocab_size].
        If a hook asks for another draw of the position, it is drawn from the same logits.
        """
        request = self._open()
        try:
            array = logits if isinstance(logits, mx.array) else mx.array(np.asarray(logits))
        except (RuntimeError, TypeError, ValueError):
            raise OptionError("logits", f"expected an array of numbers, got {logits!r}") from None
        array = array.reshape(1, -1)
        if array.shape[1] != request.vocab_size:
            raise OptionError(
                "logits",
                f"expected {request.vocab_size} values, got {array.shape[1]}; if that is the "
                f"width of your model's logits, use Session(..., vocab_size={array.shape[1]})",
            )
        with self._turn:
            begun = request.position
            self._held = len(request.history)
            while True:
                view = DrawnView(Drawn(self._sampler, array, [next_draw(request)], request.want), 0)
                stands = accept(request, view.token, view)
                if stands or request.finish_reason or request.position != begun:
                    return self._chunk(view.token, begun, stands)

    def push_token(self, token: Token) -> Chunk:
        """Put a token that is forced, or was chosen elsewhere, at the next position."""
        request = self._open()
        if not hasattr(token, "__index__") or not 0 <= token < request.vocab_size:
            raise OptionError(
                "token", f"expected a token id from 0 to {request.vocab_size - 1}, got {token!r}"
            )
        with self._turn:
            begun = request.position
            return self._chunk(token, begun, push(request, token))

    def rewind(self, tokens: int | None = None, *, to: int | None = None) -> None:
        """Take back the last ``tokens`` tokens, or all after the first ``to`` generated ones.

        Raises ``RewindError`` for more tokens than there are; then nothing has changed.
        """
        with self._turn:
            rewind(self._request, self._request.target_of(tokens, to, self._request.position))
            self._held = min(self._held, len(self._request.history))

    def fork(self, n: int = 1) -> list[Session]:
        """Make ``n`` independent sessions that go on from here, each with a seed of its own."""
        with self._turn:
            return [self._twin(seed) for seed in self._request.fork_seeds(n)]

    def finish(self, reason: FinishReason = "stop") -> Chunk:
        """End the session; returns a chunk with the text still held and no token.

        On a session that has ended already, the chunk is empty.
        """
        if reason not in get_args(FinishReason):
            reasons = ", ".join(get_args(FinishReason))
            raise OptionError("reason", f"expected one of {reasons}, got {reason!r}")
        request = self._request
        if request.finish_reason is not None:
            return Chunk("", None, request.position, finish_reason=request.finish_reason)
        with self._turn:
            end(request, reason)
            return take(request)[-1]

    def _open(self) -> Request:
        request = self._request
        if request.finish_reason is not None:
            raise StateError(
                f"the session has ended ({request.finish_reason}); rewind it or make a new one"
            )
        return request

    def _chunk(self, token: Token, begun: int, stands: bool) -> Chunk:
        chunks = take(self._request)
        text, retract = "".join(chunk.text for chunk in chunks), sum(c.retract for c in chunks)
        if stands or self._request.finish_reason is not None:
            rewound = max(0, begun + 1 - self._request.position)  # by a loop that ends it
            return replace(chunks[-1], text=text, retract=retract, rewound=rewound)
        self._held = min(self._held, len(self._request.history))
        rewound = max(0, begun + 1 - self._request.position)  # or a hook put more than went
        return Chunk(text, token, begun, retract=retract, rewound=rewound)

    def _twin(self, seed: int) -> Session:
        twin = copy.copy(self)
        twin._request = self._request.fork(seed)
        twin._turn = OneAtATime("session")
        return twin
