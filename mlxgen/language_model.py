"""A model and its tokenizer, with all ways to generate: the object that callers use.

The engine works with its ``runtime``.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Unpack, overload

from .loading import mlx_lm_first  # noqa: F401

# isort: split

from .chat.answer import AnswerReader
from .chat.calls.use import Form
from .chat.dialect import Dialect, ending_turns
from .chat.events import Text
from .chat.template.format import Chat
from .chat.turn import Turn, plan_turn
from .engine.batch import Batch, requests_of
from .engine.chunk import Result, fold
from .engine.control import Control, bound_controller, control_options
from .engine.history import History
from .engine.kv.kv import KV
from .engine.limits import Limits
from .engine.options import Options
from .engine.prefix.block_file import checked_path
from .engine.prefix.store import BlockStore
from .engine.request.prompt import AnyPrompt, Prompt, is_chat
from .engine.resampled import check, resample
from .engine.runtime import ModelRuntime
from .engine.scheduling.scheduler import Scheduler
from .engine.step.timeline import Watch
from .engine.stream import Stream
from .errors import OptionError, PromptError
from .filters import AllOf
from .images import ImageProcessor
from .loading.checkpoint import check_adapter, path_of
from .loading.generation_config import NOTHING, frozen_options, sampling_defaults
from .loading.memory import CacheDir, MemoryPlan, check_memory
from .loading.predictor import HeadPredictor
from .machines.share import PartRuntime, Share
from .options.table import GenerationOptions, Recommended, check_kv, checked, takes_options
from .tokens import Vocabulary

logger = logging.getLogger(__name__)


class LanguageModel:
    """A model and tokenizer from ``mlx_lm.load``, with all of mlxgen's ways to generate.

    - ``model``, ``tokenizer``: the pair itself, which can be used with mlx-lm as well.
    - ``name``: the model's name, for messages. ``config``: its ``config.json``, if known.
    - ``max_context``: the maximum number of tokens of prompt and answer together; by default
      the one of the configuration, ``None`` if it has none.
    - ``recommended``: the sampling options that the model's makers recommend in its
      ``generation_config.json``; empty if they recommend none. Read-only. They apply to chat
      messages unless a call says otherwise; if they are empty, temperature 0.7, top-p 0.95 and
      min-p 0.05 do. Other prompts are continued greedily: pass ``**lm.recommended`` to change that.
    - ``draft``: where draft tokens come from unless a call says otherwise; it takes the values of
      that option. If it is a model, ``"auto"`` uses that model and this one's own sources.
    - ``kv_bits`` (2, 3, 4, 5, 6 or 8): quantise the KV cache of plain attention layers; windows
      and recurrent states stay as they are. ``kv_group_size``: how many numbers share a scale (32,
      64 or 128; it divides the model's head dimension, and by default it is 64 if that does).
      ``kv_quant_start``: the first tokens of every sequence that are not quantised.
    - ``cache_bytes``: the maximum size of all KV caches, for ``memory``; by default half of what
      weights and a reserve leave.
    - ``cache_dir``, ``cache_dir_bytes``: a folder to keep prefixes in, and how many bytes its files
      may use, as for ``load``.

    Several threads may generate with one model at the same time. A stream, batch or control
    belongs to the thread that uses it first, and raises ``StateError`` in others. Keep threads that
    generate alive: MLX keeps a stream for each, and on a CPU a native thread. One that ends should
    first call ``mlx.core.clear_streams()``, or MLX can abort a process that exits soon after;
    during that call no other thread may free compiled functions, or both wait for ever.
    """

    _has_hinted = False

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
        predictor: HeadPredictor | None = None,
        share: Share | None = None,
    ) -> None:
        check_kv(kv_bits, kv_group_size, kv_quant_start)
        folder = CacheDir.of(cache_dir, cache_dir_bytes)
        self.vocabulary = ending_turns(Vocabulary.of(tokenizer))
        self.tokenizer = self.vocabulary.tokenizer
        self.recommended = frozen_options(recommended)
        make = ModelRuntime if share is None else partial(PartRuntime, share)
        self.runtime: ModelRuntime = make(
            model,
            self.vocabulary,
            name=name or type(model).__module__.rpartition(".")[2],
            config=config or vars(getattr(model, "args", None) or object),
            max_context=max_context,
            kv_bits=kv_bits,
            kv_group_size=kv_group_size,
            kv_quant_start=kv_quant_start,
            cache_bytes=cache_bytes,
            cache_dir=folder,
            predictor=predictor,
        )
        self.draft = draft

    def __repr__(self) -> str:
        sizes = f"{self.vocab_size} logits, {self.vocabulary.size} tokens"
        return f"<LanguageModel {self.name}: {sizes}>"

    def __copy__(self) -> LanguageModel:  # copies of objects that hold a model share it
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> LanguageModel:
        return self

    @property
    def model(self) -> Any:
        """The module, which can be used with mlx-lm as well."""
        return self.runtime.shown

    @property
    def config(self) -> Mapping[str, Any]:
        """The model's ``config.json``, if known."""
        return self.runtime.config

    @property
    def name(self) -> str:
        """The model's name, for messages."""
        return self.runtime.name

    @name.setter
    def name(self, name: str) -> None:
        self.runtime.name = name

    @property
    def max_context(self) -> int | None:
        """The maximum number of tokens of prompt and answer together, if there is one."""
        return self.runtime.max_context

    @max_context.setter
    def max_context(self, most: int | None) -> None:
        self.runtime.max_context = most

    @property
    def draft(self) -> Any:
        """Where draft tokens come from unless a call says otherwise."""
        return self._draft

    @draft.setter
    def draft(self, draft: Any) -> None:
        options = Options.of({"draft": draft})
        self.runtime.draft_of(options)
        self._draft = options.draft
        self.runtime.draft = getattr(options.draft, "runtime", options.draft)

    @property
    def watch(self) -> Watch | None:
        """Called with each moment of the generations that begin from now on: for timelines."""
        return self.runtime.watch

    @watch.setter
    def watch(self, watch: Watch | None) -> None:
        self.runtime.watch = watch

    @property
    def vocab_size(self) -> int:
        """The width of the logits. The tokenizer's vocabulary may be smaller or larger."""
        return self.runtime.vocab_size

    @property
    def memory(self) -> MemoryPlan:
        """How the weights, the KV caches and all else share the memory of the device."""
        return self.runtime.memory

    @property
    def images(self) -> ImageProcessor | None:
        """The reader of images in messages; ``None`` for a model that takes none."""
        return self.runtime.images

    @property
    def prefix_cache(self) -> BlockStore:
        """The KV of earlier texts, reused by every generation that begins with the same tokens.

        ``batch``, the server and ``Stream.keep`` fill it; streams of models with sliding windows or
        recurrent states also do, where a prompt's messages begin. By default it may use what
        ``memory`` plans for all KV caches; set ``max_bytes`` to change that. With ``cache_dir``,
        its contents are written to disk, too: when there is little room in memory, on ``flush()``,
        and when the interpreter ends.
        """
        return self.runtime.prefix_cache

    def with_adapter(
        self,
        path: str | os.PathLike[str],
        *,
        name: str | None = None,
        ignore_memory_limit: bool = False,
    ) -> LanguageModel:
        """The model with an adapter that mlx-lm trained for it: another ``LanguageModel``, which
        shares the weights of this one and takes no more memory than the adapter.

        This one stays as it is, and both can be used at the same time. The new one has its own
        caches, and the tokenizer, draft and limits of this one. ``name`` is by default made from
        the model's name and the folder's, as in ``base:folder``.

        Raises ``AdapterError`` if the adapter is missing, broken or made for another model, and
        ``MemoryLimitError`` if it does not fit in memory.
        """
        folder = path_of(path)
        nbytes = check_adapter(folder)
        if not ignore_memory_limit:
            check_memory(f"the tensors of {folder}", nbytes)
        twin = object.__new__(type(self))
        vars(twin).update(vars(self))
        twin.runtime = self.runtime.with_adapter(folder, name)
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
        return self._stream(prompt, self._options(prompt, options))

    @takes_options
    def generate(self, prompt: AnyPrompt, **options: Unpack[GenerationOptions]) -> Result:
        """Generate to the end; returns a ``Result``, which folds the chunks of ``stream``.

        It takes the prompts and options of ``stream`` and raises the same errors.
        """
        given = self._options(prompt, options)
        with self._stream(prompt, given) as stream:
            chunks = tuple(stream)
            result = fold(chunks, stream.usage, given.prefix)
        unsaid = isinstance(prompt, str) and not result.text.strip() and not self._has_hinted
        if unsaid and self.tokenizer.has_chat_template:
            self._has_hinted = True
            logger.warning(
                "the answer is empty: %s continues a string as it is; to have it answered, use "
                "lm.chat(...), or pass messages",
                self.name,
            )
        return result

    @overload
    def resampled(
        self,
        prompt: AnyPrompt,
        *,
        moves: int = 8,
        power: float = 1.0,
        chains: None = None,
        **options: Unpack[GenerationOptions],
    ) -> Result: ...
    @overload
    def resampled(
        self,
        prompt: AnyPrompt,
        *,
        moves: int = 8,
        power: float = 1.0,
        chains: int,
        **options: Unpack[GenerationOptions],
    ) -> list[Result]: ...
    def resampled(
        self,
        prompt: AnyPrompt,
        *,
        moves: int = 8,
        power: float = 1.0,
        chains: int | None = None,
        **options: Unpack[GenerationOptions],
    ) -> Result | list[Result]:
        """Generate a text from the model's distribution over all texts that the filters allow.

        Each of ``moves`` goes back to a random place, generates on from there, and keeps the new
        text or the old one by their probabilities (Metropolis-Hastings). The more moves, the closer
        the result is to a draw from the model's own distribution of whole texts to the ``power``,
        restricted to the filters. A ``power`` above 1 prefers texts that are likely as a whole. A
        move costs two thirds of a text on average.

        ``chains`` asks for that many independent results, as a list. The options are those of
        ``generate``; ``temperature`` is that of the draws, by default 1 over ``power`` without
        truncation. Raises ``OptionError`` for options that take tokens back on their own.
        """
        check(options, moves, power, 1 if chains is None else chains)
        unset: dict[str, Any] = {"temperature": 1 / power, "top_p": 1, "min_p": 0, "top_k": 0}
        top = options.get("top_logprobs") or 0
        given = self._options(prompt, {**unset, **options, "top_logprobs": top})
        with self._stream(prompt, given) as stream:
            results = resample(stream, moves, power, 1 if chains is None else chains)
        return results if chains is not None else results[0]

    @takes_options
    def chat(
        self, message: str, *, system: str | None = None, **options: Unpack[GenerationOptions]
    ) -> str:
        """Answer one message; returns the answer without the thinking before it.

        ``system`` is a system message before it. It takes the options of ``generate`` and raises
        the same errors; ``filters`` apply to the answer and not to the thinking, and ``max_tokens``
        is by default what the context holds. For a conversation, images, or the tokens of the
        answer, pass messages to ``generate``.
        """
        if not isinstance(message, str) or not message.strip():
            raise PromptError("expected a message to answer, such as lm.chat('Who are you?')")
        said = [] if system is None else [{"role": "system", "content": system}]
        messages = [*said, {"role": "user", "content": message}]
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
            kind = type(prompts).__name__
            raise OptionError("prompts", f"expected a list of prompts, got {kind}")
        from .progress import progress_bar

        checked(options)  # even if there is no prompt to check them with
        requests = requests_of(prompts, each, options, self._options, self.runtime.prepare)
        total = len(prompts) if isinstance(prompts, Sequence) else None
        scheduler = Scheduler(self.runtime, limits)
        return Batch(scheduler, requests, progress_bar(total) if progress else None)

    @takes_options
    def control(
        self,
        prompt: AnyPrompt,
        controller: Any,
        *,
        limits: Limits | None = None,
        **options: Unpack[GenerationOptions],
    ) -> Control[Any]:
        """Generate under a controller; returns an iterator over ``(branch, chunk)``.

        ``controller`` is a ``Controller``, whose ``mid_process`` decides on every token, or a
        ``Program``. The options are those of ``stream``, except the ones that take tokens back on
        their own (``hooks``, ``banned``, ``close_json``), and ``prefix``. Filters apply in addition
        to the controller's masks, and ``max_tokens`` to each branch. With ``heal``, the first
        tokens have to spell the prompt's end again.

        Raises ``OptionError``, ``PromptError`` or ``GrammarError`` if the prompt or an option is
        wrong.
        """
        read = Prompt.of(prompt, self.vocabulary, self.images, width=self.vocab_size)
        request = self.runtime.prepare(read, control_options(self._with_defaults(prompt, options)))
        root = bound_controller(controller, request, opens_text=read.opens_text)
        return Control(Scheduler(self.runtime, limits), request, root)

    def _stream(self, prompt: AnyPrompt, options: Options) -> Stream:
        return Stream.of(self.runtime, self.runtime.prepare(prompt, options))

    def _options(self, prompt: AnyPrompt, given: Mapping[str, Any]) -> Options:
        return Options.of(self._with_defaults(prompt, given))

    def _with_defaults(self, prompt: AnyPrompt, given: Mapping[str, Any]) -> dict[str, Any]:
        """The options of a call, with a chat's sampling defaults for those that are not given."""
        defaults = sampling_defaults("model", self.recommended) if is_chat(prompt) else {}
        unset = {name: value for name, value in defaults.items() if given.get(name) is None}
        return {**given, **unset}

    def save_prefix(self, prompt: AnyPrompt, path: str | os.PathLike[str]) -> int:
        """Run a prompt and write its KV to a file; returns its number of tokens.

        Later prompts that begin with these tokens, here or after ``load_prefix`` in another
        process, do not run them again. On several machines each writes its own part; those of the
        others are next to ``path``, as ``path.rank-1-of-2``.

        Raises ``OptionError`` if the path cannot be written.
        """
        file = checked_path(path)
        tokens = list(Prompt.of(prompt, self.vocabulary, self.images, width=self.vocab_size).tokens)
        runner = self.runtime.runner()
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
