"""A model and its tokenizer, ready to generate.

Owns the properties of a loaded model that hold for all generations: its vocabulary, the
width of its logits, its context length, how its caches are made. Must never know where it
came from (``load`` does) or how a step works (``engine`` does). Invariant: everything that
can be wrong with a request is found here, before anything runs.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, Unpack
from weakref import ref

from .loading import mlx_lm_first  # noqa: F401

# isort: split
import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache

from .chat.answer import AnswerReader
from .chat.calls.use import Form
from .chat.dialect import Dialect, ending_turns
from .chat.events import Text
from .chat.openings import beginnings, openings_of
from .chat.template.format import Chat
from .chat.turn import Turn, plan_turn
from .engine.batch import Batch
from .engine.branches import C, Plan
from .engine.chunk import Result, fold
from .engine.control import Control, bound_controller, control_options
from .engine.drafts.drafts import Drafter, Drafts
from .engine.drafts.head import Bound, HeadDrafter
from .engine.drafts.lookup import Earlier
from .engine.drafts.model import LENGTH, ModelDrafter, check_same_tokens
from .engine.drafts.policy import Policy
from .engine.drafts.predictor import Predictor
from .engine.history import History
from .engine.kv import KV, Activations, Footprint, LayerCache, Slots, batch_equals_alone
from .engine.kv.activations import ImageActivations
from .engine.kv.alone import Alone
from .engine.kv.commands import Changed
from .engine.kv.feed import Shown, Unseen
from .engine.kv.measures import Measures
from .engine.kv.quantised import Quantisation
from .engine.limits import Limits
from .engine.options import Options
from .engine.prefix.block_file import Layout, checked_path
from .engine.prefix.disk import Disk
from .engine.prefix.ends import places_of, spacing_of
from .engine.prefix.store import BlockStore
from .engine.prompts import prepared, requests_of
from .engine.request.assembly import assemble, xtc_special
from .engine.request.prompt import AnyPrompt, Prompt, is_chat
from .engine.request.request import Request
from .engine.scheduling.memory import check_pieces
from .engine.scheduling.prefill import places_ahead, take_prefix
from .engine.scheduling.scheduler import Scheduler
from .engine.step.handle import Handle
from .engine.step.pace import Pace
from .engine.step.runner import Runner
from .engine.step.step import Loop
from .engine.step.watched import Watch, WatchedLoop
from .engine.stream import Stream
from .errors import AdapterError, CapacityError, OptionError, PromptError
from .filters import AllOf
from .images import ImageProcessor, Patch
from .loading.adapter import adapted
from .loading.cache_dir import CacheDir
from .loading.checkpoint import check_adapter, path_of
from .loading.failing import failing
from .loading.generation_config import NOTHING, frozen_options
from .loading.images import image_processor
from .loading.memory import MemoryPlan, check_memory, memory_limit, wirable
from .loading.model_config import max_context_of
from .loading.sampling_defaults import sampling_defaults
from .machines.called import Called, forbid_calls
from .machines.share import Share
from .options.kv import check_kv
from .options.table import GenerationOptions, Recommended, checked, takes_options
from .sampling import Sampler
from .tokens import Token, Vocabulary

logger = logging.getLogger(__name__)


class LanguageModel:
    """A model and tokenizer from ``mlx_lm.load``, with all of mlxgen's ways to generate.

    - ``model``, ``tokenizer``: the pair itself, which can be used with mlx-lm as well.
    - ``name``: the model's name, for messages. ``config``: its ``config.json``, if known.
    - ``max_context``: the maximum number of tokens of prompt and answer together; by default
      the one of the configuration, ``None`` if it has none.
    - ``recommended``: the sampling options that the model's makers recommend in its
      ``generation_config.json``; empty if they recommend none. Read-only. They hold for chat
      messages where a call does not say; if they are empty, temperature 0.7, top-p 0.95 and min-p
      0.05 do. Other prompts are continued greedily: pass ``**lm.recommended`` to change that.
    - ``draft``: where draft tokens come from in generations that do not say; it takes the values
      of that option. If it is a model, ``"auto"`` uses that model and what this one has itself.
      ``predictor``: what drafts from the model's own hidden states, as ``load`` makes it of the
      multi-token-prediction head that some checkpoints have.
    - ``kv_bits`` (2, 3, 4, 5, 6 or 8): quantise the KV cache of plain attention layers; windows
      and recurrent states stay as they are. ``kv_group_size``: how many numbers share a scale (32,
      64 or 128; it divides the model's head dimension, and by default it is 64 if that does).
      ``kv_quant_start``: the first tokens of every sequence that are not quantised.
    - ``cache_bytes``: the maximum size of all KV caches, for ``memory``; by default half of what
      weights and a reserve leave.
    - ``cache_dir``, ``cache_dir_bytes``: a folder to keep prefixes in, and how many bytes its files
      may use, as for ``load``.

    Several threads may generate with one model at the same time. A stream, batch or control
    belongs to the thread that uses it first, and raises ``StateError`` in others. Let threads that
    generate live on: MLX keeps a stream for each, and on a CPU a native thread. One that ends
    should call ``mlx.core.clear_streams()`` before, or MLX can abort a process that exits soon
    after; meanwhile no other thread may free compiled functions, or both wait for ever.
    """

    _has_hinted = False
    watch: Watch | None = None
    """Is told what the generations that begin from now on do, and when: for timelines."""

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        name: str | None = None,
        config: Mapping[str, Any] | None = None,
        recommended: Recommended = NOTHING,
        max_context: int | None = None,
        kv_bits: int | None = None,
        kv_group_size: int | None = None,
        kv_quant_start: int = 0,
        cache_bytes: int | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        cache_dir_bytes: int | None = None,
        draft: Any = "auto",
        predictor: Predictor | None = None,
        is_demo: bool = False,
        share: Share | None = None,
    ) -> None:
        check_kv(kv_bits, kv_group_size, kv_quant_start)
        self._cache_dir = CacheDir.of(cache_dir, cache_dir_bytes)
        _compute(model)
        self.model = model
        self.vocabulary = ending_turns(Vocabulary.of(tokenizer))
        self.tokenizer = self.vocabulary.tokenizer
        self.name = name or type(model).__module__.rpartition(".")[2]
        self.config: Mapping[str, Any] = config or vars(getattr(model, "args", None) or object)
        self.recommended = frozen_options(recommended)
        self.max_context = max_context or max_context_of(self.config)
        self.is_demo = is_demo
        self.share = share
        self.predictor = predictor
        self.use_draft(draft)
        self._cache_bytes = cache_bytes
        self._quantisation: Quantisation | None = None
        if kv_bits is not None:
            self._quantisation = Quantisation.of(
                model, self.make_cache, kv_bits, kv_group_size, kv_quant_start, name=self.name
            )

    def __repr__(self) -> str:
        return (
            f"<LanguageModel {self.name}: {self.vocab_size} logits, {self.vocabulary.size} tokens>"
        )

    def use_draft(self, draft: Any) -> None:
        """Set what proposes tokens in generations that do not say."""
        options = Options.of({"draft": draft})
        self.draft = options.draft
        self._draft_of(options)

    def __copy__(self) -> LanguageModel:  # copies of objects that hold a model share it
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> LanguageModel:
        return self

    @cached_property
    def _measures(self) -> Measures:
        """What the graph of a pass of one token tells."""
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
        """What steps take here, and prompts beside them; all of its generations share it."""
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
        """How the weights, the KV caches and all else share the memory of the device."""
        return self._plan()

    def share_memory(self, weights: int, sharers: int) -> None:
        """Plan ``memory`` anew, as one of so many models in this process that have these weights
        together. ``cache_bytes`` is for all of them."""
        wired, self.memory = self.memory.wired, self._plan(weights, sharers)
        if wired:
            self.wire()

    @property
    def weight_bytes(self) -> int:
        """The bytes of the weights, those of a draft model and of a ``predictor`` included."""
        draft = self.draft.weight_bytes if isinstance(self.draft, LanguageModel) else 0
        head = 0 if self.predictor is None else self.predictor.nbytes
        return self.footprint.weights + draft + head

    def _plan(self, weights: int | None = None, sharers: int = 1) -> MemoryPlan:
        draft = self.draft._measures if isinstance(self.draft, LanguageModel) else None
        image, limit = 0, self._cache_bytes
        if self.images is not None:
            image = self._image_activations.nbytes(self.images.most_patches)
        device = None
        if self.share is not None:  # as if this one had no more room than the smallest
            device = self.share.room + self.footprint.weights
        return self._measures.plan(
            self.max_context, limit, draft, image, device=device, weights=weights, sharers=sharers
        )

    @cached_property
    def images(self) -> ImageProcessor | None:
        """What reads the images in messages; ``None`` for a model that takes none."""
        return image_processor(self.model, self.tokenizer, self.config)

    @cached_property
    def _image_activations(self) -> ImageActivations:
        """The memory that the vision tower needs."""
        own = self.model.embed_inputs(mx.array([0]))
        return ImageActivations.of(self.config["vision_config"], own.dtype)

    def wire(self, limit: int | None = None) -> None:
        """Keep the model's memory from being paged out: as many bytes as ``memory`` plans to use,
        or ``limit``. It applies to the whole process, and only with Metal; else nothing happens.
        """
        if wirable() is not None:
            self.memory = self.memory.wire(limit)

    @cached_property
    def batches(self) -> bool:
        """Whether several sequences can run through the model together; tried out once."""
        return batch_equals_alone(self.model, self.make_cache)

    def use_share(self, share: Share) -> None:
        """Have this be a part of a model, with what all ranks know of the others: collective."""
        room = memory_limit()[0] - self.footprint.weights
        self.share = share.settled(self.footprint, room)
        self.batches = share.agrees(self.batches)  # tried out by all, as there are sums in it
        forbid_calls(self.model)

    @cached_property
    def prefix_cache(self) -> BlockStore:
        """The KV of earlier texts, reused by every generation that begins with the same tokens.

        ``batch``, the server and ``Stream.keep`` fill it, and where a prompt's messages begin also
        the streams of models with sliding windows or recurrent states. By default it may use what
        ``memory`` plans for all KV caches; set ``max_bytes`` to change that. With
        ``cache_dir``, what is kept comes to be on disk, too: when there is little room in memory,
        on ``flush()``, and when the interpreter ends.
        """
        folder, where, model = None, self._cache_dir, Called(self.model)
        if where is not None:
            folder = Disk(where.path, where.max_bytes, Layout(self.make_cache, model))
        limit, share = self.memory.caches, self.share
        of: Mapping[str, Any] = (
            {} if share is None else {"part": share.part, "sizes": share.footprints}
        )
        made = BlockStore(self.make_cache, limit, model=model, folder=folder, **of)
        # If two threads ask at the same time, both get the first one.
        first: BlockStore = vars(self).setdefault("prefix_cache", made)
        if share is not None and first is made:
            made.together = share.machines.together
            if share.machines.leads:
                made.through = partial(_through, ref(self), made)
                made.max_bytes = limit  # of all
        return first

    def places(self, tokens: Sequence[Token]) -> list[int]:
        """Where in a prompt a snapshot of windows and recurrent states is worth keeping, in order;
        nowhere while the model can go back anywhere in so many tokens."""
        if Alone(self.make_cache).can_undo(len(tokens)):
            return []
        spacing = spacing_of(self.footprint.snapshot, self.footprint.growing)
        return places_of(beginnings(tokens, openings_of(self.vocabulary)), len(tokens) - 1, spacing)

    def make_cache(self) -> list[LayerCache]:
        """Empty caches for one sequence, one for each layer."""
        caches = list(make_prompt_cache(self.model))
        return caches if self._quantisation is None else self._quantisation.applied(caches)

    def with_adapter(
        self,
        path: str | os.PathLike[str],
        *,
        name: str | None = None,
        ignore_memory_limit: bool = False,
    ) -> LanguageModel:
        """The model with an adapter that mlx-lm trained for it: another ``LanguageModel``, which
        shares the weights of this one and takes no more memory than the adapter.

        This one stays as it is, and both can be used at the same time. The other one has caches of
        its own; its tokenizer, draft and limits are those of this one. ``name`` is by default the
        model's and the folder's, as in ``base:folder``.

        Raises ``AdapterError`` if the adapter is missing, broken or made for another model, and
        ``MemoryLimitError`` if it does not fit in memory.
        """
        folder = path_of(path)
        nbytes = check_adapter(folder)
        if not ignore_memory_limit:
            check_memory(f"the tensors of {folder}", nbytes)
        twin = object.__new__(type(self))
        for key, value in vars(self).items():
            if not isinstance(getattr(type(self), key, None), cached_property):
                setattr(twin, key, value)
        twin.model = adapted(self.model, folder)
        twin.name = name or f"{self.name}:{folder.resolve().name}"
        with failing(AdapterError, f"the adapter {folder} cannot be read"):
            _compute(twin.model)
        if "memory" in vars(self) and self.memory.wired:
            twin.wire()
        return twin

    @takes_options
    def stream(self, prompt: AnyPrompt, **options: Unpack[GenerationOptions]) -> Stream:
        """Generate; returns an iterator of ``Chunk`` that can be rewound and forked.

        ``prompt`` is raw text, a list of token ids, or a list of chat messages. Raw text and ids
        are continued greedily unless you set a temperature; an answer to messages is sampled as the
        model's makers recommend, else with temperature 0.7, top-p 0.95 and min-p 0.05. If
        ``images`` is not ``None``, messages may have images in them: ``{"role": "user", "content":
        [{"type": "image", "image": "cat.png"}, {"type": "text", "text": "Who is this?"}]}``.

        Raises ``OptionError``, ``PromptError`` or ``GrammarError`` if the prompt or an option is
        wrong, before anything runs.
        """
        return self._stream(self.prepare(prompt, self._options(prompt, options)))

    @takes_options
    def generate(self, prompt: AnyPrompt, **options: Unpack[GenerationOptions]) -> Result:
        """Generate to the end; returns a ``Result``, which folds the chunks of ``stream``.

        It takes the prompts and options of ``stream`` and raises the same errors.
        """
        given = self._options(prompt, options)
        with self._stream(self.prepare(prompt, given)) as stream:
            chunks = tuple(stream)
            result = fold(chunks, stream.usage, given.prefix)
        if isinstance(prompt, str) and not result.text.strip():
            self._hint_at_chat()
        return result

    @takes_options
    def chat(
        self, message: str, *, system: str | None = None, **options: Unpack[GenerationOptions]
    ) -> str:
        """Answer one message; returns the answer without the thinking before it.

        ``system`` is a system message before it. It takes the options of ``generate`` and raises
        the same errors; ``filters`` hold for the answer and not for the thinking, and
        ``max_tokens`` is by default what the context holds. For a conversation, images, or the
        tokens of the answer, pass messages to ``generate``.
        """
        if not isinstance(message, str) or not message.strip():
            raise PromptError("expected a message to answer, such as lm.chat('Who are you?')")
        messages = [{"role": "user", "content": message}]
        if system is not None:
            messages.insert(0, {"role": "system", "content": system})
        chat, given = Chat(messages), self._with_defaults(messages, options)
        filters = Options.of({"filters": given.pop("filters", None)}).filters
        form = None
        if filters:
            if not all(hasattr(each, "bind") for each in filters):
                raise OptionError("filters", "expected specifications, such as Regex(pattern)")
            specs: Sequence[Any] = filters
            form = Form("filters", specs[0] if len(specs) == 1 else AllOf(*specs))
        plan = plan_turn(Turn(chat=chat, form=form), Dialect.of(self.vocabulary, self.images))
        given = {"max_tokens": None, **given}
        if plan.spec is not None:
            given["filters"] = [plan.spec]
        result = self.generate(Prompt(plan.ids, plan.opens_text, plan.thinking), **given)
        reader = AnswerReader(plan.reading)
        events = [event for chunk in result.chunks for event in reader.push(chunk, result.usage)[0]]
        return "".join(event.text for event in events if isinstance(event, Text)).strip()

    def _hint_at_chat(self) -> None:
        """Say once that raw text is continued and not answered, where somebody may not know."""
        if self.tokenizer.has_chat_template and not self._has_hinted:
            self._has_hinted = True
            logger.warning(
                "the answer is empty: %s continues a string as it is; to have it answered, use "
                "lm.chat(...), or pass messages",
                self.name,
            )

    @takes_options
    def batch(
        self,
        prompts: Iterable[AnyPrompt],
        *,
        each: Iterable[GenerationOptions] | None = None,
        limits: Limits | None = None,
        progress: bool = False,
        **options: Unpack[GenerationOptions],
    ) -> Batch:
        """Generate for many prompts at once; returns an iterator over ``(index, chunk)``.

        The options are those of ``stream`` and apply to every prompt; ``each`` has one mapping
        per prompt, in order, with the options that differ. Every prompt gets the text that it
        would get alone with the same options and seed. ``prompts`` may be any iterable: a list
        is checked completely before anything runs; from other iterables a few prompts are
        taken ahead. ``limits`` sets how many run at a time and how much memory they may use;
        ``progress=True`` shows a progress bar.

        Raises ``OptionError``, ``PromptError`` or ``GrammarError`` if a prompt or an option is
        wrong.
        """
        if isinstance(prompts, (str, bytes, Mapping)) or not hasattr(prompts, "__iter__"):
            raise OptionError(
                "prompts", f"expected a list of prompts, got {type(prompts).__name__}"
            )
        from .progress import progress_bar

        checked(options)  # even if there is no prompt to check them with
        requests = requests_of(prompts, each, options, self._options, self.prepare)
        total = len(prompts) if isinstance(prompts, Sequence) else None
        scheduler = Scheduler(self, limits)
        return Batch(scheduler, requests, progress_bar(total) if progress else None)

    @takes_options
    def control(
        self,
        prompt: AnyPrompt,
        controller: Plan[C] | C,
        *,
        limits: Limits | None = None,
        **options: Unpack[GenerationOptions],
    ) -> Control[C]:
        """Generate under a controller; returns an iterator over ``(branch, chunk)``.

        ``controller`` is a ``Controller``, whose ``mid_process`` decides on every token, or a
        ``Program``. The options are those of ``stream``, except the ones that take tokens back
        on their own (``hooks``, ``banned``, ``close_json``, ``heal``), ``prefix`` and ``draft``.
        Filters apply in addition to the controller's masks, and ``max_tokens`` to each branch.

        Raises ``OptionError``, ``PromptError`` or ``GrammarError`` if the prompt or an option is
        wrong.
        """
        read = Prompt.of(prompt, self.vocabulary, self.images, width=self.vocab_size)
        request = self.prepare(read, control_options(self._with_defaults(prompt, options)))
        root = bound_controller(controller, request, opens_text=read.opens_text)
        return Control(Scheduler(self, limits), request, root)

    def _options(self, prompt: AnyPrompt, given: Mapping[str, Any]) -> Options:
        return Options.of(self._with_defaults(prompt, given))

    def _with_defaults(self, prompt: AnyPrompt, given: Mapping[str, Any]) -> dict[str, Any]:
        """The options of a call, with the sampling of a chat as far as the caller does not say."""
        defaults = sampling_defaults("model", self.recommended) if is_chat(prompt) else {}
        unset = {name: value for name, value in defaults.items() if given.get(name) is None}
        return {**given, **unset}

    def prepare(self, given: AnyPrompt, options: Options) -> Request:
        """Make a request for a ``Scheduler``; raises everything that can be wrong with it.

        Any thread may call this, once ``vocab_size`` is known.
        """
        options.check_vocabulary(self.vocab_size)
        prompt = Prompt.of(given, self.vocabulary, self.images, width=self.vocab_size)
        if self.images is not None:
            self._check_images(prompt)
        self._draft_of(options)
        if options.prediction:
            options = options.predicting(prompt.tokens, self.vocabulary)
        budget, seed = self._budget(prompt, options), options.some_seed()
        return assemble(prompt, options, self.vocabulary, self.vocab_size, budget=budget, seed=seed)

    def prepare_all(self, jobs: Iterable[tuple[AnyPrompt, Options]]) -> list[Request]:
        """A request for each job, as ``prepare`` makes it; see ``prepared``."""
        return prepared(self.prepare, jobs)

    def drafts_for(self, options: Options, owner: str = "") -> Drafts:
        """What drafts for a generation with these options; it belongs to this thread.

        Of earlier texts, it knows those of the same ``owner``.
        """
        kind, model = self._draft_of(options)
        drafters: list[Drafter] = []
        if kind in ("auto", "ngram"):
            drafters.append(self._earlier.drafter(owner, options.prediction))
        if model is not None:
            drafters.append(self._model_drafter(model, learned=kind == "auto"))
        if kind == "auto" and self.predictor is not None and self.share is None:
            drafters.append(self._head_drafter(self.predictor))
        return Drafts(drafters, options.num_draft_tokens, wanted=kind != "auto")

    def _head_drafter(self, predictor: Predictor) -> HeadDrafter:
        bound, footprint = Bound(predictor), self._head_footprint
        runner = Runner(bound, predictor.make_cache)
        if self.images is not None:
            runner.feed = Unseen(self.vocab_size)
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

    def _model_drafter(self, draft: LanguageModel, *, learned: bool) -> ModelDrafter:
        runner = draft.runner()
        if self.images is not None or draft.vocab_size < self.vocab_size:
            runner.feed = Unseen(draft.vocab_size)
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
        """What drafts from text know of earlier ones."""
        return Earlier()

    @cached_property
    def _policies(self) -> dict[int, Policy]:
        """What drafts of other models were worth."""
        return {}

    def runner(self, slots: Slots | None = None) -> Runner:
        """A runner of the model with its prefix cache, and with slots if several run together."""
        piece = partial(self.activations.most, self.memory.activations)
        feed = None if self.images is None else Shown()
        make: Callable[..., Runner] = Runner if self.share is None else self.share.runner
        return make(
            self.model,
            self.make_cache,
            slots,
            lambda: self.prefix_cache,
            piece,
            feed,
            self.predictor,
        )

    def loop(self, runner: Runner, *, longest_run: int | None = None) -> Loop:
        """A step loop for this model, which tells ``watch`` what it does, if that is set."""
        if self.watch is None:
            return Loop(runner, self.sampler, self.pace, longest_run=longest_run)
        return WatchedLoop(
            runner, self.sampler, self.pace, longest_run=longest_run, watch=self.watch
        )

    def _draft_of(self, options: Options) -> tuple[str, LanguageModel | None]:
        """Which kind of drafts the options ask for, and the model for them; ``OptionError`` for
        a model with other tokens."""
        is_own = options.draft == "auto"
        draft = self.draft if is_own else options.draft
        if isinstance(draft, str):
            return draft, None
        check_same_tokens(self.vocabulary, draft.vocabulary, draft.name)
        return "auto" if is_own else "model", draft

    def save_prefix(self, prompt: AnyPrompt, path: str | os.PathLike[str]) -> int:
        """Run a prompt and write its KV to a file; returns its number of tokens.

        Later prompts that begin with these tokens, here or after ``load_prefix`` in another
        process, do not run them again. On several machines each writes its own part; those of the
        others are beside ``path``, as ``path.rank-1-of-2``.

        Raises ``OptionError`` if the path cannot be written.
        """
        file = checked_path(path)
        tokens = list(Prompt.of(prompt, self.vocabulary, self.images, width=self.vocab_size).tokens)
        runner = self.runner()
        kv = KV(runner)
        kv.take(tokens)
        while kv.length < len(tokens):
            kv.run(tokens[kv.length : kv.length + runner.piece(kv.length)], wanted=0)
            kv.wait()
        kv.keep(History(tokens))
        runner.settle()
        return self.prefix_cache.save(file, tokens)

    def load_prefix(self, path: str | os.PathLike[str]) -> int:
        """Load a prefix from a file into ``prefix_cache``; returns its number of tokens.

        Raises ``LoadError`` if the file is missing, damaged or made with another model, or if
        another machine's part is, or is of other tokens.
        """
        return self.prefix_cache.load(path)

    def _stream(self, request: Request) -> Stream:
        length, activations = len(request.history), self.activations
        drafts = self.drafts_for(request.options)
        room = self.memory.left - self.footprint.alone(length + 1) - drafts.nbytes_at(length + 1)
        check_pieces(activations, length, room)
        runner = self.runner()
        runner.piece = partial(activations.most, min(room, self.memory.activations))
        handle = Handle(request, KV(runner), drafts)
        # The cache is made when somebody first asks for it. What is taken from it is computed here,
        # as the stream may be handed to another thread, which could not do that.
        places: list[int] = []
        if "prefix_cache" in vars(self) or self._cache_dir is not None:
            cache = self.prefix_cache
            if not handle.is_scored:
                cache.restore(handle.history, do=runner.do, token=self.pace.token)
            if take_prefix(handle, cache):
                handle.kv.wait()
            # At least where the prompt ends, as the answer may fill a window
            places = places_ahead(handle, cache, self.places) or [length - 1]
        return Stream(self.loop(runner), handle, places)

    def _check_images(self, prompt: Prompt) -> None:
        """Raise ``CapacityError`` for an image that there is not the memory to look at."""
        counts = {token.image.count for token in prompt.tokens if isinstance(token, Patch)}
        room = self.memory.activations
        for count in counts:
            needed = self._image_activations.nbytes(count)
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


def _compute(model: Any) -> None:
    """Compute every array of a model, including those that are not parameters.

    The frequencies of rotary embeddings, for example, are computed when they are first used, and
    only the thread that made them can do that.
    """
    modules = model.modules() if hasattr(model, "modules") else ()
    mx.eval([array for part in modules for array in part.values() if isinstance(array, mx.array)])


def _through(of: ref[LanguageModel], cache: BlockStore, command: Changed) -> Any:
    """Change the prefix caches of all parts of a model, which the cache must not keep alive."""
    lm = of()
    return cache.do(command) if lm is None else lm.runner().do(command)
