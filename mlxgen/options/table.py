"""The one table of options: the type, range, default and meaning of each.

Owns the options of ``stream``, ``generate``, ``batch``, ``control`` and ``Session``. The engine's
``Options``, the command line, the fields of requests and ``help()`` are made from it. Must never
know a model: checks that depend on one (token ids in range, room in the context) are made where the
two meet. Nor does it import MLX: a wrong argument is reported at once.

The text under a key is what an editor shows for that keyword of a call. Its first sentence is the
option in brief, its last one the rule in words, and those between tell more.
"""

import ast
import difflib
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from itertools import pairwise
from textwrap import fill
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, TypedDict, TypeVar, get_args

from ..errors import OptionError
from . import rule
from .rule import ABOVE_ZERO, Rule, integer, number, one_of

if TYPE_CHECKING:
    from ..filters.protocol import Filter, Specification
    from ..sampling.hooks import Hook
    from ..tokens import Token

F = TypeVar("F", bound=Callable[..., Any])
Pattern: TypeAlias = str | re.Pattern[str]

_FLAG = Rule(False, "True or False", rule.flag)
_BIASES = "a mapping from token ids to numbers from -1,000,000,000 to 1,000,000,000"
_PATTERNS = "a string, a compiled regular expression or a list of these"
_FILTERS = "a filter or a list of filters, such as JsonSchema(schema) or Regex(pattern)"


class Recommended(TypedDict, total=False):
    """The options that a model's makers may recommend."""

    temperature: Annotated[float, number(0, 0, 100)]
    """0 takes the most likely token, 1 draws as the model predicts, and higher values vary more. A
    number from 0 to 100; default 0."""
    top_p: Annotated[float, number(1, ABOVE_ZERO, 1)]
    """Keep the most likely tokens that together reach this probability; 1 keeps all. A number above
    0 and at most 1; default 1."""
    top_k: Annotated[int, integer(0, 0)]
    """Keep this many of the most likely tokens; 0 keeps all. An integer of at least 0; default
    0."""
    min_p: Annotated[float, number(0, 0, 1)]
    """Minimum probability relative to the most likely token; 0 keeps all. A number from 0 to 1;
    default 0."""
    repetition_penalty: Annotated[float, number(1, 1e-9, 1e6)]
    """Above 1, tokens of the prompt and the output become less likely; 1 turns it off. Positive
    logits are divided by it, and negative ones multiplied. A number from 1e-09 to 1,000,000;
    default 1."""


class SamplingOptions(Recommended, total=False):
    """The options that turn logits into a token."""

    presence_penalty: Annotated[float, number(0, -2, 2)]
    """Subtracted once from the logit of each token that was generated. A number from -2 to 2;
    default 0."""
    frequency_penalty: Annotated[float, number(0, -2, 2)]
    """Subtracted from the logit of a token for each time it was generated. A number from -2 to 2;
    default 0."""
    repetition_context_size: Annotated[int, integer(0, 0)]
    """Number of the newest tokens, the prompt included, that the penalties look at; 0 is all of
    them. An integer of at least 0; default 0."""
    dry_multiplier: Annotated[float, number(0, 0, 100)]
    """Above 0, DRY makes tokens less likely that would continue a repetition; 0 turns it off. It
    lowers the logit of a token that followed the same tokens before by ``dry_multiplier * dry_base
    ** (length - dry_allowed_length)``, where ``length`` is the number of these, 1,000 at most. A
    number from 0 to 100; default 0."""
    dry_base: Annotated[float, number(1.75, 1, 100)]
    """Factor by which DRY's penalty grows with each repeated token. A number from 1 to 100; default
    1.75."""
    dry_allowed_length: Annotated[int, integer(2, 1)]
    """Number of repeated tokens from which on DRY makes the next one less likely. An integer of at
    least 1; default 2."""
    dry_penalty_last_n: Annotated[int, integer(-1, -1)]
    """Number of the newest tokens, the prompt included, in which DRY looks for repetitions; -1 is
    all of them. An integer of at least -1; default -1."""
    dry_sequence_breakers: Annotated[
        Sequence[str], Rule(("\n", ":", '"', "*"), "a list of strings", rule.list_of_strings)
    ]
    """Strings at which a repetition ends for DRY. Only the tokens after the last one of them are
    compared. A list of strings; default ('\\n', ':', '"', '*')."""
    top_n_sigma: Annotated[float, number(-1, -1, 100)]
    """Keep tokens whose logit is at most this many standard deviations of all logits below the
    highest one (top-nσ), which does not depend on the temperature; 0 or less keeps all. A number
    from -1 to 100; default -1."""
    min_k: Annotated[float, number(-1, -1, 1e6)]
    """Keep the tokens before the steepest relative drop of the sorted logits (min-k), which does
    not depend on the temperature, and no fewer than this number divided by the range of the logits:
    3 is usual. A negative number keeps all. It sorts the whole vocabulary for each draw. A number
    from -1 to 1,000,000; default -1."""
    xtc_probability: Annotated[float, number(0, 0, 1)]
    """Probability that XTC leaves out the top choices of a draw, all but the least likely. A number
    from 0 to 1; default 0."""
    xtc_threshold: Annotated[float, number(0.1, 0, 0.5)]
    """Probability above which a token is a top choice for XTC. A number from 0 to 0.5; default
    0.1."""
    adaptive_target: Annotated[float, number(-1, -1, 1)]
    """Prefer tokens near this probability (adaptive-p), and aim the further beyond it the further
    the average of the latest tokens is on the other side; a negative number turns it off. Use
    ``min_p`` with it, which keeps out the unlikely ones. A request that uses it is not drafted. A
    number from -1 to 1; default -1."""
    adaptive_decay: Annotated[float, number(0.9, 0, 0.99)]
    """How much of adaptive-p's average stays with each token. It is that of some ``1 / (1 -
    adaptive_decay)`` tokens. A number from 0 to 0.99; default 0.9."""
    logit_bias: Annotated["Mapping[Token, float]", Rule({}, _BIASES, rule.biases)]
    """Added to the logits of these token ids. A mapping from token ids to numbers from
    -1,000,000,000 to 1,000,000,000; default none."""


class ChangingOptions(SamplingOptions, total=False):
    """The options that may change within a text, by ``rewind`` and ``fork`` of a stream."""

    stop: Annotated[str | Sequence[str], Rule((), "a string or a list of strings", rule.strings)]
    """Strings that end the text and are not part of it. In a chat they hold for the answer, not for
    the thinking before it. A string or a list of strings; default none."""
    stop_tokens: Annotated[
        "Sequence[Token | Sequence[Token]]",
        Rule((), "a list of token ids or of lists of them", rule.token_sequences),
    ]
    """Token ids that end the text and are not part of it. They hold for the thinking of a chat as
    well. A list of token ids or of lists of them; default none."""
    filters: Annotated[
        "Specification | Filter | Sequence[Specification | Filter]",
        Rule((), _FILTERS, rule.filters),
    ]
    """Constraints that the whole text satisfies; several are intersected. A specification may be
    used again and again, a running filter once. A filter or a list of filters, such as
    JsonSchema(schema) or Regex(pattern); default none."""


class GenerationOptions(ChangingOptions, total=False):
    """The keyword-only options of ``stream``, ``generate``, ``batch``, ``control`` and ``Session``.

    ``None`` for any of them is its default, except for ``max_tokens``.
    """

    seed: Annotated[int | None, Rule(None, "an integer", rule.seed)]
    """The same seed and settings give the same text. ``None`` draws a seed. An integer; default
    None."""
    max_tokens: Annotated[int | None, integer(256, 1)]
    """Maximum number of tokens to generate. Those of ``prefix`` count; ``None`` is as many as the
    context holds. An integer of at least 1; default 256."""
    min_tokens: Annotated[int, integer(0, 0)]
    """Minimum number of tokens before an end token or a single-token stop may be drawn. An integer
    of at least 0; default 0."""
    ignore_eos: Annotated[bool, _FLAG]
    """Continue after end tokens, which then give no text. True or False; default False."""
    stop_in_reasoning: Annotated[bool, _FLAG]
    """Let stop strings end the text in the thinking of a chat as well. True or False; default
    False."""
    thinking_budget: Annotated[int | None, integer(None, 0)]
    """Maximum number of tokens to think before the answer. When it is spent, a short sentence and
    the mark that ends the thinking follow at once, in addition; 0 allows no thoughts. A model that
    does not think is not affected; ``None`` is no limit. An integer of at least 0; default None."""
    banned: Annotated[Pattern | Sequence[Pattern], Rule((), _PATTERNS, rule.patterns)]
    """Strings and regular expressions that never appear in the text. A match is taken back and
    drawn again; a search that takes a second ends in ``OptionError``, and a text that runs from one
    ban into the next in ``DeadEndError``. A string, a compiled regular expression or a list of
    these; default none."""
    ban_strength: Annotated[float, number(1, 0, 1)]
    """Share of the banned matches that are taken back; at 0.9, one in ten stands. The seed and the
    place decide which. A number from 0 to 1; default 1."""
    heal: Annotated[bool, _FLAG]
    """Take back the prompt's last tokens if the text may join them. True or False; default
    False."""
    hooks: Annotated[
        "Hook | Sequence[Hook]", Rule((), "a callable or a list of callables", rule.callables)
    ]
    """Called with a PostSamplingResult for every accepted token. A fork copies those that have a
    ``fork()`` and shares the others. A callable or a list of callables; default none."""
    max_resample: Annotated[int, integer(16, 0, 10_000)]
    """How often hooks may have one position drawn again. It counts their ``resample`` and a
    ``rewind`` that leads there; then the last draw stands, and the chunk of the token whose hook
    asked says ``exhausted``. An integer from 0 to 10,000; default 16."""
    hold_tokens: Annotated[int, integer(0, 0, 1_000_000)]
    """How many of the newest tokens are not delivered yet. An integer from 0 to 1,000,000; default
    0."""
    allow_retract: Annotated[bool, _FLAG]
    """Deliver at once, and report what to delete if tokens are taken back. ``Chunk.retract`` is the
    number of characters. True or False; default False."""
    close_json: Annotated[bool, _FLAG]
    """End filtered text validly before the maximum number of tokens cuts it off. True or False;
    default False."""
    loops: Annotated[
        Literal["off", "stop", "take back"],
        Rule("off", '"off", "stop" or "take back"', rule.loops),
    ]
    """What to do if the text repeats itself again and again. ``"take back"`` goes back and writes
    something else, a few times; then it ends the thinking of a chat, and at last the text, as
    ``"stop"`` does at once: ``Usage.looped``. What stands in the prompt may be repeated, and so may
    patterns such as those of tables. "off", "stop" or "take back"; default "off"."""
    prefix: Annotated["Sequence[Token]", Rule((), "a list of token ids", rule.tokens)]
    """Tokens taken as already generated. A list of token ids; default none."""
    top_logprobs: Annotated[int | None, integer(None, 0, 20)]
    """Number of alternatives to report with each token's log-probability. They are the model's own,
    before anything here was done to them: ``Chunk.top``. ``None`` reports and computes none. An
    integer from 0 to 20; default None."""
    top_candidates: Annotated[int, integer(0, 0, 128)]
    """Number of tokens to report of those that each one was drawn from. They come after filters and
    all the rest, with their probabilities: ``Chunk.candidates``. An integer from 0 to 128; default
    0."""
    prompt_logprobs: Annotated[int | None, integer(None, 0, 20)]
    """Number of alternatives to report for each token of the prompt. They are in the first chunk's
    ``prompt``; all of the prompt is run then, and nothing of it taken from the prefix cache.
    ``None`` reports none. An integer from 0 to 20; default None."""
    draft: Annotated[Any, Rule("auto", 'a LanguageModel, "auto", "ngram" or "off"', rule.draft)]
    """Where draft tokens come from, of which the model verifies several in one pass. The text is
    the same, token for token, only sooner. ``"auto"`` is what the model was loaded with: by default
    it drafts where that is faster, from text that the model has read or written lately, with its
    own prediction heads, and with a draft model if it was loaded with one. ``"ngram"`` drafts from
    text only, a smaller model with the same tokenizer alone, and ``"off"`` not at all. A
    LanguageModel, "auto", "ngram" or "off"; default "auto"."""
    num_draft_tokens: Annotated[int | None, integer(None, 1, 64)]
    """Number of tokens that are drafted at a time. With ``"auto"`` it is the maximum; otherwise
    always that many, if there are. ``None`` is as many as are likely to be accepted. An integer
    from 1 to 64; default None."""
    prediction: Annotated[
        "str | Sequence[Token]", Rule((), "a string or a list of token ids", rule.text_or_tokens)
    ]
    """What the text will be for the most part, such as a file before some changes. It is drafted
    from wherever the text goes on as it does, and changes nothing else. A string or a list of token
    ids; default none."""


@dataclass(frozen=True, slots=True)
class Option:
    """One row of the table: the type that callers pass, its rule, and its description."""

    type: Any
    rule: Rule
    text: str

    @property
    def brief(self) -> str:
        """The first sentence, for a list."""
        first = self.text.partition(". ")[0]
        return first[0].lower() + first[1:]


def _rows() -> Iterator[tuple[str, Option]]:
    texts = texts_in(__name__)
    for name, given in GenerationOptions.__annotations__.items():
        kind, rule = get_args(given)
        yield name, Option(kind, rule, texts.get(name, str(rule)))


def texts_in(module: str) -> dict[str, str]:
    """The text under each key of the classes of a module, which Python does not keep."""
    try:
        source = inspect.getsource(sys.modules[module])
    except OSError:  # a frozen program may come without its source
        return {}
    texts = {}
    for table in ast.parse(source).body:
        rows = table.body if isinstance(table, ast.ClassDef) else []
        for key, text in pairwise(rows):
            match key, text:
                case ast.AnnAssign(ast.Name(name)), ast.Expr(ast.Constant(str(written))):
                    texts[name] = " ".join(written.split())
    return texts


ELSEWHERE: Mapping[str, str] = MappingProxyType(
    {
        "temp": "temperature",
        "ban": "banned",
        "banned_strings": "banned",
        "bad_words": "banned",
        "draft_model": "draft",
        "max_new_tokens": "max_tokens",
        "max_completion_tokens": "max_tokens",
        "n_predict": "max_tokens",
        "num_predict": "max_tokens",
        "repeat_penalty": "repetition_penalty",
        "repeat_last_n": "repetition_context_size",
        "stop_strings": "stop",
        "stop_sequences": "stop",
        "logprobs": "top_logprobs",
        "n_probs": "top_logprobs",
        "max_kv_size": "max_context of mlxgen.load",
        "json_schema": "filters=mlxgen.JsonSchema(schema)",
        "response_format": "filters=mlxgen.JsonSchema(schema)",
        "regex": "filters=mlxgen.Regex(pattern)",
        "grammar": "filters=mlxgen.Lark(grammar)",
        "lark": "filters=mlxgen.Lark(grammar)",
        "choice": "filters=mlxgen.Choice(texts)",
        "system": "a message with the role system",
        "system_prompt": "a message with the role system",
    }
)
"""Other programs' and earlier versions' names for an option; shown after "did you mean"."""

OPTIONS: Mapping[str, Option] = MappingProxyType(dict(_rows()))
"""Every option, by its name."""


def checked(given: Mapping[str, Any]) -> dict[str, Any]:
    """Every option as the engine takes it, including those that are not given.

    Raises ``OptionError`` for the first one that is unknown, or wrong by itself.
    """
    values = {name: copy(option.rule.default) for name, option in OPTIONS.items()}
    for name, value in given.items():
        if name not in OPTIONS:
            raise unknown(name, OPTIONS, "help(mlxgen.LanguageModel.stream) lists the options")
        if value is not None:
            values[name] = OPTIONS[name].rule.check(name, value)
        elif name == "max_tokens":
            values[name] = None
    return values


def unknown(name: str, known: Iterable[str], where: str) -> OptionError:
    """The error for an option that does not exist: it names the likely one, or ``where`` to look.

    Names that other programs have for an option are understood, too.
    """
    plain = name.lower().replace("-", "_")
    likely = ELSEWHERE.get(plain) or next(iter(difflib.get_close_matches(plain, known, 1)), None)
    hint = where if likely is None else f"did you mean {likely}?"
    return OptionError(name, f"there is no such option; {hint}")


def understood(name: str, value: Any) -> Any:
    """The value of an option in mlxgen's own form, if other programs write it differently."""
    if isinstance(value, bool):
        return value
    if name == "top_p" and value == 0:
        return 1e-9  # a nucleus of one token
    if name == "top_k" and value == -1:
        return 0
    if name == "top_k" and isinstance(value, float) and value.is_integer():
        return int(value)  # JSON has no integers
    return value


def check_together(values: Mapping[str, Any]) -> None:
    """Raise ``OptionError`` for checked options that contradict each other."""
    least, most, prefix = values["min_tokens"], values["max_tokens"], values["prefix"]
    if most is not None and least > most:
        raise OptionError("min_tokens", f"{least} is more than max_tokens={most}")
    if most is not None and len(prefix) >= most:
        raise OptionError(
            "prefix",
            f"its {len(prefix)} tokens count as generated and leave nothing of "
            f"max_tokens={most}; raise max_tokens",
        )
    if values["close_json"] and not values["filters"]:
        raise OptionError("close_json", "needs a filter, such as filters=[JsonSchema(schema)]")


KV_BITS = one_of(2, 3, 4, 5, 6, 8)
KV_GROUP_SIZE = one_of(32, 64, 128)
KV_QUANT_START = integer(0, 0, 1 << 31)


def check_kv(bits: int | None, group_size: int | None, start: int) -> None:
    """Raise ``OptionError`` for a KV quantisation that no model supports."""
    KV_QUANT_START.check("kv_quant_start", start)
    if bits is not None:
        KV_BITS.check("kv_bits", bits)
    if group_size is not None:
        KV_GROUP_SIZE.check("kv_group_size", group_size)
    if bits is None:
        for name, given in (("kv_group_size", group_size), ("kv_quant_start", start)):
            if given:
                raise OptionError(name, "has no effect without kv_bits; set that, too")


def takes_options(function: F) -> F:
    """Show every option in ``help()`` and in the signature of a function that takes them all.

    Type checkers see its ``**options: Unpack[GenerationOptions]``.
    """
    paragraphs = [inspect.cleandoc(function.__doc__ or ""), "Options:"]
    signature = inspect.signature(function)
    parameters = list(signature.parameters.values())[:-1]
    for name, option in OPTIONS.items():
        paragraphs.append(fill(f"{name}: {option.text}", 92))
        kind = getattr(option.type, "__forward_arg__", option.type)
        keyword = inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=kind)
        parameters.append(keyword.replace(default=option.rule.default))
    function.__doc__ = "\n\n".join(paragraphs)
    vars(function)["__signature__"] = signature.replace(parameters=parameters)
    return function
