"""The command line: ``python -m mlxgen.generate``, installed as ``mlxgen.generate``.

Owns the options, what is printed where, and the exit status. Must never know anything
below the engine's public face. Invariant: generated text, and nothing else, goes to
standard output, with a line end after it; everything else goes to standard error; wrong input
gives one line there and exit status 2. Slow imports come only after the arguments are checked.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from .arguments import OneModel, Parser, add_settings, load_model
from .errors import MachineError, MlxgenError, OptionError
from .load import join
from .loading.generation_config import SamplingChoice, in_words, sampling_defaults
from .open_files import FILES, raise_limit
from .options.rule import LOOPS
from .options.table import OPTIONS, Recommended, SamplingOptions, check_together, checked
from .terminal.asked import (
    FLAGS,
    NUMBERS,
    engine_options,
    forms_of,
    make_prompt,
    read_first,
    read_prompt,
)
from .terminal.interrupt import end_as_interrupted, leaving_at_once
from .terminal.odds import Painter, legend, wants_colour
from .terminal.report import NAME, json_line, report, say, unheld
from .terminal.trace import Trace
from .words import counted

if TYPE_CHECKING:
    from .language_model import LanguageModel
    from .terminal.screens import Style

COMMON = (
    *("--model", "--draft", "--max-context", "--cache-dir", "--prompt", "--system"),
    *("--image", "--chat", "--resume", "--raw", "--max-tokens", "--thinking-budget"),
    *("--temperature", "--top-p", "--top-k", "--min-p", "--seed"),
    *("--stop", "--banned", "--json-schema", "--regex", "--show-probs", "--json", "--verbose"),
)
ALIASES = {  # see arguments.ALIASES
    "--ban": "--banned",
    "-p": "--prompt",
    "--system-prompt": "--system",
    "-sys": "--system",
    "-n": "--max-tokens",
    "--n-predict": "--max-tokens",
    "--temp": "--temperature",
    "--repeat-penalty": "--repetition-penalty",
    "-s": "--seed",
    "-cnv": "--chat",
    "--conversation": "--chat",
    "--ignore-chat-template": "--raw",
    "--chat-template-config": "--chat-template-args",
    "--chat-template-kwargs": "--chat-template-args",
}
LOST, WRONG, INTERRUPTED = 1, 2, 130  # exit statuses; the last is 128 plus the signal's number
EXAMPLES = """\
examples:
  mlxgen.generate "What is the capital of France?"
  mlxgen.generate --model mlx-community/Qwen3-4B-4bit --temperature 0.7 "Write a haiku"
  cat notes.txt | mlxgen.generate --model ./my-model "Summarise this:"
  mlxgen.generate --raw --stop $'\\n' "Once upon a time"
  mlxgen.generate --chat --temperature 0.7

exit status: 0 done (a closed pipe too), 1 a machine was lost, 2 wrong input, 130 interrupted
"""
DEMO = (
    "this is the small demo model, which knows almost nothing;"
    " for a real one, use --model FOLDER or --model mlx-community/Qwen3-4B-4bit"
)

UNSET = {name: OPTIONS[name].rule.default for name in Recommended.__annotations__}
DEFAULTS = {  # those that differ from the engine's
    **dict.fromkeys(Recommended.__annotations__, "see --sampling-defaults"),
    "max_tokens": "what the context holds; with --raw 256",
    "seed": "a new one each time",
    "num_draft_tokens": "as many as are likely to be accepted",
    "thinking_budget": "no limit",
}


def _help(name: str) -> str:
    option = OPTIONS[name]
    return f"{option.brief} (default: {DEFAULTS.get(name, option.rule.usually)})"


# Options that only this command has, by group: the name of the value (with dots, the option is
# repeatable; without a value, it is a flag), and the help.
PROMPT = (
    ("--prompt", "PROMPT", "the same as PROMPT"),
    ("--system", "TEXT", "a system message before the prompt"),
    ("--image", "FILE...", "an image before the prompt, if the model takes images; repeatable"),
    ("--chat", "", "hold a conversation, one message a line; /help lists its commands"),
    ("--resume", "", "go on with the last conversation"),
    (
        "--raw",
        "",
        "continue the prompt without the chat template; greedy by default. With --chat: show "
        "answers as they are written, not as rendered Markdown",
    ),
    (
        "--chat-template-args",
        "JSON",
        'variables of the template, such as {"enable_thinking": false}',
    ),
    (
        "--allow-control-tokens",
        "",
        "read text such as <|im_end|> in messages as that token, not as plain characters",
    ),
)
GENERATION = (
    ("--stop", "TEXT...", "end before this text; repeatable"),
    (
        "--dry-sequence-breaker",
        "TEXT...",
        "a string that no repetition goes beyond for DRY; repeatable (default: line end, "
        'colon, " and *)',
    ),
    ("--banned", "TEXT...", "never generate this text; repeatable"),
    (
        "--json-schema",
        "FILE",
        "the text must be JSON that matches this schema, a file or the JSON itself; objects "
        "have only the keys that it names, unless additionalProperties allows more",
    ),
    ("--regex", "PATTERN", "the whole text must match this regular expression"),
    ("--lark", "FILE", "the text must follow the Lark grammar in this file"),
)
FORMATS = (
    ("--show-probs", "", "colour each token by its probability"),
    ("--json", "", "print one JSON object per line for each chunk"),
)
REPORTS = (
    ("--verbose", "", "report speed and memory on standard error"),
    (
        "--trace",
        "FILE",
        "write a timeline of the run in Chrome's trace event format, for ui.perfetto.dev",
    ),
)


def make_parser() -> argparse.ArgumentParser:
    """The parser; every destination is the name of an option, with underscores."""
    parser = Parser(
        NAME,
        "Generate text with a language model and stream it to standard output.",
        EXAMPLES,
        usage="[OPTIONS] [PROMPT]",
        common=COMMON,
        aliases=ALIASES,
    )
    parser.add_argument(
        "text", nargs="?", metavar="PROMPT", help="the prompt; text from a pipe is added to it"
    )
    add_settings(parser, OneModel, {"model": "model"})
    _add(parser.add_argument_group("prompt"), PROMPT)
    generation = parser.add_argument_group("generation")
    for name in NUMBERS:
        kind, value = (float, "X") if OPTIONS[name].type is float else (int, "N")
        generation.add_argument(_flag(name), type=kind, metavar=value, help=_help(name))
    for name in FLAGS:
        text = OPTIONS[name].brief
        generation.add_argument(_flag(name), action="store_true", default=None, help=text)
    loops = f"{OPTIONS['loops'].brief} (default: take back; with --raw off)"
    generation.add_argument("--loops", choices=LOOPS, help=loops)
    _add(generation, GENERATION)
    output = parser.add_argument_group("output")
    _add(output.add_mutually_exclusive_group(), FORMATS)
    most_likely = "with --json: report the N most likely tokens"
    output.add_argument("--top-logprobs", type=int, metavar="N", help=most_likely)
    _add(output, REPORTS)
    defaults = {each.name: each.default for each in fields(OneModel)}
    parser.set_defaults(**defaults | {"sampling_defaults": None})
    return parser


def _add(group: argparse._ActionsContainer, options: Sequence[tuple[str, str, str]]) -> None:
    for flag, value, text in options:
        name = flag.removeprefix("--").replace("-", "_")
        how = {"metavar": value.removesuffix("...")} if value else {"action": "store_true"}
        if value.endswith("..."):
            how["action"] = "append"
            name += "s" if name == "dry_sequence_breaker" else ""
        group.add_argument(flag, dest=name, help=text, **how)  # type: ignore[arg-type]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status. On several machines only rank 0 returns."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")  # its warnings are not for users
    machines = None
    try:
        machines = join()
        if machines is not None:
            end_as_interrupted()
        arguments = make_parser().parse_args(argv)
        raise_limit(FILES)
        if isinstance(sys.stdout, io.TextIOWrapper):  # a locale without the model's characters
            sys.stdout.reconfigure(errors="replace")
        return run(arguments, launched=machines is not None)
    except MlxgenError as error:
        if machines is None or machines.lost is None:  # otherwise it was reported
            say(f"error: {_as_typed(error)}")
        return LOST if isinstance(error, MachineError) else WRONG
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        _give_up_stdout()
        return 0


def run(arguments: argparse.Namespace, *, launched: bool = False) -> int:
    """Check what needs no model, load the model and generate; returns the exit status.

    ``launched``: whether ``mlx.launch`` started this, on several machines.
    """
    arguments.chat = arguments.chat or arguments.resume
    arguments.as_written = arguments.chat and arguments.raw
    arguments.raw = arguments.raw and not arguments.chat
    arguments.launched = launched
    if launched and "-" in (arguments.text, arguments.prompt):
        raise OptionError(
            "prompt",
            "standard input has no end under mlx.launch; pass the text itself, such as"
            ' --prompt "$(cat notes.txt)"',
        )
    tracing: AbstractContextManager[Trace | None] = nullcontext()
    if arguments.trace is not None:
        tracing = Trace(arguments.trace, f"mlxgen: {arguments.model or 'demo'}")
    with tracing as trace:
        with leaving_at_once(INTERRUPTED):
            text, options, lm = prepare(arguments)
        lm.watch = trace
        choice: SamplingChoice = "greedy" if arguments.raw else "model"
        defaults = sampling_defaults(arguments.sampling_defaults or choice, lm.recommended)
        if arguments.verbose:
            sampling = {k: v for k, v in options.items() if k in SamplingOptions.__annotations__}
            say(f"sampling:    {in_words(defaults | sampling)}")
        try:
            if not arguments.chat:
                prompt = make_prompt(lm, text or "", arguments)
                return stream_text(lm, prompt, {**UNSET, **defaults, **options}, arguments)
            from .terminal.chat import TerminalChat
            from .terminal.commands import completions, run_command

            chat = TerminalChat(
                lm, options, defaults, arguments, command=run_command, complete=completions
            )
            return chat.run(text, notice=f"{NAME}: {DEMO}" if _is_demo(lm, arguments) else None)
        finally:
            if arguments.cache_dir is not None:
                lm.prefix_cache.flush()


def prepare(arguments: argparse.Namespace) -> tuple[str | None, dict[str, Any], LanguageModel]:
    """The prompt's text, the options and the model; raises if any of them is wrong."""
    text = read_first(arguments) if arguments.chat else read_prompt(arguments)
    options = engine_options(arguments)
    if not (arguments.raw or arguments.chat):  # a model may think for hundreds of tokens first
        options = {"max_tokens": None, "loops": "take back"} | options

    check_together(checked(options))
    started = time.perf_counter()
    lm = load_model(
        arguments.model,
        arguments,
        adapter=arguments.adapter,
        max_context=arguments.max_context,
        kv_group_size=arguments.kv_group_size,
        kv_quant_start=arguments.kv_quant_start,
    )
    if arguments.verbose:
        say(f"loaded {lm.name} in {time.perf_counter() - started:.2f} s")
        say(f"memory:      {lm.memory}")
        if arguments.cache_dir is not None:
            say(f"prefixes:    {lm.prefix_cache.folder}")
    return text, options, lm


def stream_text(
    lm: LanguageModel,
    prompt: Any,
    options: Mapping[str, Any],
    arguments: argparse.Namespace,
) -> int:
    """Generate and print; returns the exit status. An interrupt keeps the text so far."""
    status, ends_line, last = 0, True, None
    with lm.stream(prompt, **options) as stream:
        if _is_demo(lm, arguments):
            say(DEMO)
        style = None if arguments.json else style_of(arguments)
        try:
            for chunk in stream:
                last = chunk
                usage = stream.usage if chunk.finish_reason is not None else None
                if style is None:
                    sys.stdout.write(json_line(chunk, usage, lm.vocabulary) + "\n")
                else:
                    sys.stdout.write(style(chunk.text, chunk.logprob))
                sys.stdout.flush()
                ends_line = chunk.text.endswith("\n") if chunk.text else ends_line
        except KeyboardInterrupt:
            status = INTERRUPTED
        usage = stream.usage
        if arguments.cache_dir is not None:
            stream.keep()
    if not ends_line and not arguments.json:
        print(flush=True)  # in a pipe as well, as mlx-lm and llama.cpp do
    for line in unheld(usage):
        say(line)
    if arguments.verbose:
        for line in report(usage, last):
            say(line)
    elif last is not None and last.finish_reason == "length":
        used = usage.prompt_tokens + usage.completion_tokens
        if lm.max_context is not None and used >= lm.max_context:
            say(f"stopped because the context of {lm.max_context} tokens is full")
        elif arguments.max_tokens is None:
            count = counted(usage.completion_tokens, "token")
            say(f"stopped after {count}; --max-tokens allows more")
    return status


# ---- output ----


def style_of(arguments: argparse.Namespace) -> Style:
    """How text is written: coloured; on a terminal, with its lines broken between words, unless it
    must match a form; or as it is."""
    if arguments.show_probs and wants_colour(sys.stdout, os.environ):
        say(f"probability: {legend()}")
        return Painter().push
    if arguments.show_probs:
        say("--show-probs: no colours, because this is not a terminal or NO_COLOR is set")
    elif sys.stdout.isatty() and os.environ.get("TERM") != "dumb" and not forms_of(arguments):
        from .terminal.screens import Wrapper

        return Wrapper().push
    return lambda text, logprob: text


def _is_demo(lm: LanguageModel, arguments: argparse.Namespace) -> bool:
    return arguments.model is None and lm.name == "demo"


def _as_typed(error: MlxgenError) -> str:
    """The error's text in one line, with an option named as the user typed it."""
    text = " ".join(str(error).split())
    return _flag(error.field) + text[len(error.field) :] if isinstance(error, OptionError) else text


def _flag(name: str) -> str:
    names = {
        "template": "chat-template-args",
        "dry_sequence_breakers": "dry_sequence_breaker",
    }
    return "--" + names.get(name, name).replace("_", "-")


def _give_up_stdout() -> None:
    """Send the interpreter's last flush nowhere, because the reader has left."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


if __name__ == "__main__":
    sys.exit(main())
