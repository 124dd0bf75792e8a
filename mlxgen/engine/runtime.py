"""A model as the engine runs it: what all of its generations share.

Owns the properties of a loaded model that hold for all generations: its vocabulary, the width of
its logits, its context length, how its caches are made, the memory that they may use. Must never
know where it came from (``load`` does), who generates, or what callers see of it
(``language_model`` does). Invariant: everything that can be wrong with a request is found here,
before anything runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache

from ..chat.openings import beginnings, openings_of
from ..errors import AdapterError, CapacityError, ModelError, PromptError, failing
from ..images import ImageProcessor, Patch
from ..loading.adapter import adapted
from ..loading.memory import CacheDir, MemoryPlan, memory_limit, wirable
from ..loading.model_config import max_context_of
from ..loading.pair import image_processor
from ..loading.predictor import HeadPredictor
from ..sampling import Sampler
from ..tokens import Token, Vocabulary
from .drafts.drafts import Drafter, Drafts, Policy
from .drafts.head import Bound, HeadDrafter
from .drafts.lookup import SURE, Earlier
from .drafts.model import LENGTH, ModelDrafter, check_same_tokens
from .kv.feed import Shown, unseen
from .kv.footprint import Activations, Footprint, Measures, image_bytes
from .kv.groups import Slots, batch_equals_alone, quantisation, quantised
from .kv.layers import PREFILL_STEP, LayerCache, can_undo
from .kv.runner import Runner
from .kv.slot_caches import Quantisation
from .options import Options
from .prefix.block_file import Layout
from .prefix.blocks import places_of, spacing_of
from .prefix.disk import Disk
from .prefix.store import BlockStore
from .request.leads import xtc_special
from .request.prompt import AnyPrompt, Prompt
from .request.request import Request
from .step.pace import Pace
from .step.step import Loop
from .step.timeline import Watch


class ModelRuntime:
    """What the engine needs of a model, and what it has learned about it; it is the ``runtime`` of
    a ``LanguageModel``: see there for the arguments.

    - ``predictor``: drafts from the model's own hidden states; ``load`` makes it from the
      multi-token-prediction head that some checkpoints have.
    - ``watch``: is told what the generations that begin from now on do, and when: for timelines.
    - ``draft``: the option ``draft`` of generations that leave it out.
    """

    watch: Watch | None = None

    def __init__(
        self,
        model: Any,
        vocabulary: Vocabulary,
        *,
        name: str,
        config: Mapping[str, Any],
        max_context: int | None,
        kv_bits: int | None,
        kv_group_size: int | None,
        kv_quant_start: int,
        cache_bytes: int | None,
        cache_dir: CacheDir | None,
        predictor: HeadPredictor | None,
    ) -> None:
        compute(model)
        self.model = model
        self.vocabulary = vocabulary
        self.name = name
        self.config = config
        self.max_context = max_context or max_context_of(config)
        self.predictor = predictor
        self.draft: str | ModelRuntime = "auto"
        self._cache_dir = cache_dir
        self._cache_bytes = cache_bytes
        self._quantisation: Quantisation | None = None
        if kv_bits is not None:
            self._quantisation = quantisation(
                model, self.make_cache, kv_bits, kv_group_size, kv_quant_start, name=name
            )

    def with_adapter(self, folder: Path, name: str | None) -> ModelRuntime:
        """The same model with an adapter, which has caches of its own."""
        twin = object.__new__(type(self))
        for key, value in vars(self).items():
            if not isinstance(getattr(type(self), key, None), cached_property):
                setattr(twin, key, value)
        twin.model = adapted(self.model, folder)
        twin.name = name or f"{self.name}:{folder.resolve().name}"
        with failing(AdapterError, f"the adapter {folder} cannot be read"):
            compute(twin.model)
        if "memory" in vars(self) and self.memory.wired:
            twin.wire()
        return twin

    @property
    def shown(self) -> Any:
        """The module, for code outside of mlxgen."""
        return self.model

    @cached_property
    def _measures(self) -> Measures:
        """What the graph of a one-token pass tells."""
        with failing(ModelError, f"a forward pass of {self.name} fails on this device"):
            return Measures.of(self.model, self.make_cache, self.config)

    @property
    def vocab_size(self) -> int:
        """The width of the logits. The tokenizer's vocabulary may be smaller or larger."""
        return self._measures.vocab_size

    @cached_property
    def sampler(self) -> Sampler:
        """The sampler that all generations of this model share."""
        return Sampler(self.vocab_size, xtc_special=xtc_special(self.vocabulary))

    @cached_property
    def pace(self) -> Pace:
        """How long steps take, and prompts between them, in all generations of this model."""
        return Pace()

    @property
    def footprint(self) -> Footprint:
        """The memory that the KV caches of a sequence need."""
        return self._measures.footprint

    @property
    def activations(self) -> Activations:
        """The memory that a pass over a piece of a prompt needs."""
        return self._measures.activations

    @cached_property
    def memory(self) -> MemoryPlan:
        """How the weights, the KV caches and everything else share the memory of the device."""
        return self._plan()

    def share_memory(self, weights: int, sharers: int) -> None:
        """Plan ``memory`` anew, as one of ``sharers`` models in this process that have these
        ``weights`` together. ``cache_bytes`` is for all of them."""
        wired, self.memory = self.memory.wired, self._plan(weights, sharers)
        if wired:
            self.wire()

    @property
    def weight_bytes(self) -> int:
        """The bytes of the weights, including those of a draft model and of a ``predictor``."""
        draft = self.draft.weight_bytes if isinstance(self.draft, ModelRuntime) else 0
        head = 0 if self.predictor is None else self.predictor.nbytes
        return self.footprint.weights + draft + head

    def _plan(self, weights: int | None = None, sharers: int = 1) -> MemoryPlan:
        """How the device is shared; ``sharers``: this many models have these ``weights`` together.

        A draft model has the same room: its KV next to the other, its pieces in turn. So does an
        image, before the piece that it belongs to.
        """
        models = [self._measures]
        if isinstance(self.draft, ModelRuntime):
            models.append(self.draft._measures)
        image = 0 if self.images is None else self._image_bytes(self.images.most_patches)

        def piece(caches: int) -> int:
            held = caches // max(1, sum(each.footprint.growing for each in models))
            longest = held if self.max_context is None else min(held, self.max_context)
            pieces = [each.activations.nbytes(PREFILL_STEP, longest) for each in models]
            return max(image, *pieces)

        if weights is None:
            weights = max(mx.get_active_memory(), sum(each.footprint.weights for each in models))
        caches = self._cache_bytes
        return MemoryPlan.of(self._device, weights, caches=caches, piece=piece, sharers=sharers)

    @property
    def _device(self) -> int:
        """The bytes of the device's memory."""
        return memory_limit()[0]

    @cached_property
    def images(self) -> ImageProcessor | None:
        """The reader of the images in messages; ``None`` for a model that takes none."""
        return image_processor(self.model, self.vocabulary.tokenizer, self.config)

    def _image_bytes(self, patches: int) -> int:
        """The memory that the vision tower needs for an image."""
        own = self.model.embed_inputs(mx.array([0]))
        return image_bytes(self.config["vision_config"], own.dtype, patches)

    def wire(self, limit: int | None = None) -> None:
        """Keep the model's memory from being paged out: as many bytes as ``memory`` plans to use,
        or ``limit``. It applies to the whole process, and only with Metal; otherwise it does
        nothing."""
        if wirable() is not None:
            self.memory = self.memory.wire(limit)

    @cached_property
    def batches(self) -> bool:
        """Whether several sequences can run through the model together; tried once."""
        return batch_equals_alone(self.model, self.make_cache)

    @cached_property
    def prefix_cache(self) -> BlockStore:
        """The KV of earlier texts: see ``LanguageModel``."""
        made = self._store()
        # If two threads ask at the same time, both get the first one.
        first: BlockStore = vars(self).setdefault("prefix_cache", made)
        if first is made:
            self._opened(made)
        return first

    def _store(self, **parts: Any) -> BlockStore:
        """A store of this model's KV; ``parts``: further arguments, for several machines."""
        folder, where, model = None, self._cache_dir, self.model
        if where is not None:
            folder = Disk(where.path, where.max_bytes, Layout(self.make_cache, model))
        return BlockStore(self.make_cache, self.memory.caches, model=model, folder=folder, **parts)

    def _opened(self, cache: BlockStore) -> None:
        """Called once, with the store that has become ``prefix_cache``."""

    @property
    def keeps(self) -> bool:
        """Whether there is a prefix cache by now, or a folder for one."""
        return "prefix_cache" in vars(self) or self._cache_dir is not None

    def places(self, tokens: Sequence[Token]) -> list[int]:
        """Where in a prompt a snapshot of windows and recurrent states is worth keeping, in order;
        nowhere while the model can go back anywhere in that many tokens."""
        if can_undo(self.make_cache(), len(tokens)):
            return []
        spacing = spacing_of(self.footprint.snapshot_at(), self.footprint.growing)
        return places_of(beginnings(tokens, openings_of(self.vocabulary)), len(tokens) - 1, spacing)

    def make_cache(self) -> list[LayerCache]:
        """Empty caches for one sequence, one for each layer."""
        caches = list(make_prompt_cache(self.model))
        return caches if self._quantisation is None else quantised(caches, self._quantisation)

    def prepare(self, given: AnyPrompt, options: Options) -> Request:
        """Make a request for a ``Scheduler``; raises everything that can be wrong with it.

        Any thread may call this, once ``vocab_size`` is known.
        """
        options.check_vocabulary(self.vocab_size)
        prompt = Prompt.of(given, self.vocabulary, self.images, width=self.vocab_size)
        if self.images is not None:
            self._check_images(prompt)
        self.draft_of(options)
        if options.prediction:
            options = options.predicting(prompt.tokens, self.vocabulary)
        budget, seed = self._budget(prompt, options), options.some_seed()
        return Request(prompt, options, self.vocabulary, self.vocab_size, budget=budget, seed=seed)

    def drafts_for(self, options: Options, owner: str = "") -> Drafts:
        """The drafters for a generation with these options; they belong to this thread.

        Of earlier texts, they know those of the same ``owner``.
        """
        kind, model = self.draft_of(options)
        drafters: list[Drafter] = []
        if model is not None:
            drafters.append(self._model_drafter(model, learned=kind == "auto"))
        if kind == "auto" and self.predictor is not None:
            drafters.append(self._head_drafter(self.predictor))
        if kind in ("auto", "ngram"):
            patience = SURE if drafters else 0
            drafters.insert(0, self._earlier.drafter(owner, options.prediction, patience=patience))
        return Drafts(drafters, options.num_draft_tokens, wanted=kind != "auto")

    def _head_drafter(self, predictor: HeadPredictor) -> HeadDrafter:
        bound, footprint = Bound(predictor), self._head_footprint
        runner = Runner(bound, predictor.make_cache)
        if self.images is not None:
            runner.feed = partial(unseen, self.vocab_size)
        return HeadDrafter(
            runner,
            bound,
            self.sampler,
            width=self.vocab_size,
            footprint=footprint,
            policy=self._policies.setdefault(id(predictor), Policy(LENGTH)),
        )

    @cached_property
    def _head_footprint(self) -> Footprint:
        assert self.predictor is not None
        return Bound(self.predictor).footprint(self.model)

    def _model_drafter(self, draft: ModelRuntime, *, learned: bool) -> ModelDrafter:
        runner = draft.runner(batches=False)
        if self.images is not None or draft.vocab_size < self.vocab_size:
            runner.feed = partial(unseen, draft.vocab_size)
        return ModelDrafter(
            runner,
            self.sampler,
            width=self.vocab_size,
            footprint=draft.footprint,
            policy=self._policies.setdefault(id(draft), Policy(LENGTH)) if learned else None,
            piece=partial(draft.activations.most, self.memory.activations),
            cache=draft.prefix_cache,
        )

    @cached_property
    def _earlier(self) -> Earlier:
        """The earlier texts that drafts from text come from."""
        return Earlier()

    @cached_property
    def _policies(self) -> dict[int, Policy]:
        """The policies of drafting models and heads, as learned so far."""
        return {}

    def runner(self, *, batches: bool = True, spare: int | None = None) -> Runner:
        """A runner of the model with its prefix cache; several sequences go through it together if
        ``batches``, and if the model can do that. Their slots may have ``spare`` unused places."""
        slots = Slots(
            self.make_cache,
            (lambda: self.batches) if batches else None,
            self.footprint.spare if spare is None else spare,
            own=self._measures.own,
        )
        piece = partial(self.activations.most, self.memory.activations)
        feed = None if self.images is None else Shown()
        make = self._make_runner
        return make(
            self.model,
            self.make_cache,
            slots,
            lambda: self.prefix_cache,
            piece,
            feed,
            self.predictor,
        )

    @property
    def _make_runner(self) -> Callable[..., Runner]:
        return Runner

    def loop(self, runner: Runner, *, longest_run: int = 1 << 40) -> Loop:
        """A step loop for this model, which tells ``watch`` what it does, if that is set."""
        return Loop(runner, self.sampler, self.pace, longest_run=longest_run, watch=self.watch)

    def draft_of(self, options: Options) -> tuple[str, ModelRuntime | None]:
        """The kind of drafts that the options ask for, and the model for them; ``OptionError`` for
        a model with other tokens."""
        is_own = options.draft == "auto"
        draft = self.draft if is_own else getattr(options.draft, "runtime", options.draft)
        if isinstance(draft, str):
            return draft, None
        check_same_tokens(self.vocabulary, draft.vocabulary, draft.name)
        return "auto" if is_own else "model", draft

    def _check_images(self, prompt: Prompt) -> None:
        """Raise ``CapacityError`` for an image that there is not enough memory for."""
        counts = {token.image.count for token in prompt.tokens if isinstance(token, Patch)}
        room = self.memory.activations
        for count in counts:
            needed = self._image_bytes(count)
            if needed > room:
                raise CapacityError(
                    f"an image of {count} patches needs {needed:,} bytes, but {room:,} are left; "
                    "scale it down, or allow fewer bytes for KV caches"
                )

    def _budget(self, prompt: Prompt, options: Options) -> int:
        wanted = options.max_tokens if options.max_tokens is not None else 1 << 40
        if self.max_context is None:
            return wanted
        room = self.max_context - len(prompt.tokens)
        if room <= len(options.prefix):
            given = f"{len(prompt.tokens)} tokens"
            if options.prefix:
                given += f" and a prefix of {len(options.prefix)}"
            raise PromptError(
                f"the prompt is too long: it has {given}, but the maximum context length of "
                f"{self.name} is {self.max_context} tokens, including at least one to generate; "
                "shorten the prompt"
            )
        return min(wanted, room)


def compute(model: Any) -> None:
    """Compute every array of a model, including those that are not parameters.

    The frequencies of rotary embeddings, for example, are computed when they are first used, and
    only the thread that made them can do that.
    """
    modules = model.modules() if hasattr(model, "modules") else ()
    mx.eval([array for part in modules for array in part.values() if isinstance(array, mx.array)])
