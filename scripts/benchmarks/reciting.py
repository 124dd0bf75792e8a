"""Models of random weights that recite an answer, in folders that any server can load.

Owns their weights, tokenizer and chat template, and the answer. Must never know who asks.
Invariants: after each token of the answer comes the next one, whatever was before it, so all
servers answer alike; the answer in a later prompt has the tokens that were generated.

The answer is a reasoning, a text, and a call of a tool. Each of its tokens occurs in it once.
That is how it comes out of random weights: the embedding of a token outweighs what the layers
add to it, and the row of the head for the token after it points the same way.
"""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mlx.core as mx
from mlx.utils import tree_flatten
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

from .architectures import configuration, random_model
from .models import SYLLABLES, byte_names

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

CONTEXT = 131_072
_WORDS = 3_000
_NUMBERS = 200
_KNOWN = [
    *("The", "This", "If", "all", "of", "a", "and", "the", "to", "is", "it", "with", "for"),
    *("type", "string", "object", "properties", "required", "description", "name", "function"),
    *("parameters", "arguments", "system", "user", "path", "def", "return", "import", "self"),
]
_SIGNS = [
    *('{"', '":', ' "', '",', '"}', '"},', " {", "}}", "}}}", " [", '["', '"]', "],", "[]"),
    *(",", ".", ":", ";", "(", ")", "():", " =", "==", " #", "##", " -", "/", "_", "```"),
    *("\n", "\n\n", "  ", "    ", ".\n", ":\n", ",\n", "\n    ", "\n        "),
]
_OPENING, _LET, _AFTER = "assistant\n", "\nLet", "\n\n"
_CALL, _WITH, _FILE, _END = '\n{"name": "', '", "arguments": {"path": "', "src/main.py", '"}}\n'
_PHRASES = (_OPENING, _LET, _AFTER, _CALL, _WITH, _FILE, _END, ".\n", ":\n")
"""Tokens that a pre-tokenizer by words would cut."""
_WORDWISE = r"'s|'t| ?\p{L}+| ?\p{N}{1,3}| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_ADDED = ("<think>", "</think>", "<tool_call>", "</tool_call>")

TEMPLATE = r"""{%- set system = messages[0].content if messages[0].role == "system" else "" %}
{%- if system or tools %}<|im_start|>system
{{ system }}
{%- if tools %}{{ "\n\n# Tools" }}
{%- for tool in tools %}{{ "\n" }}{{ tool | tojson }}
{%- endfor %}{{ "\n" }}Call one like this:
<tool_call>
{"name": "name", "arguments": {}}
</tool_call>
{%- endif %}<|im_end|>
{% endif %}
{%- set turn = namespace(last=-1) %}
{%- for message in messages if message.role == "user" %}
{%- set turn.last = messages.index(message) %}
{%- endfor %}
{%- for message in messages %}
{%- if message.role == "user" %}<|im_start|>user
{{ message.content }}<|im_end|>
{% elif message.role == "tool" %}<|im_start|>user
<tool_response>
{{ message.content }}
</tool_response><|im_end|>
{% elif message.role == "assistant" %}<|im_start|>assistant
{% if loop.index0 > turn.last and message.reasoning_content %}<think>
{{ message.reasoning_content.strip("\n") }}
</think>

{% endif %}{{ (message.content or "").strip("\n") }}
{%- for tool_call in message.tool_calls or [] %}
{%- set tool_call = tool_call.function %}{{ "\n" }}<tool_call>
{"name": "{{ tool_call.name }}", "arguments": {{ tool_call.arguments | tojson }}}
</tool_call>
{%- endfor %}<|im_end|>
{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% if enable_thinking is defined and enable_thinking is false %}<think>

</think>

{% endif %}{% endif %}"""
"""As Qwen3's in what matters here: reasoning is shown after the last message of the user only, and
an answer without it begins with an empty one that later prompts leave out."""


def words(seed: int = 0, count: int = _WORDS) -> list[str]:
    """Made-up words, each of which is a token, with a space before it as well."""
    chance = random.Random(seed)
    made: dict[str, None] = dict.fromkeys(_KNOWN)
    while len(made) < count:
        made.setdefault("".join(chance.choices(SYLLABLES, k=chance.choice((1, 2, 2, 3)))))
    return list(made)


def answer(thinks: bool, *, reasoning: int = 24, text: int = 16) -> list[str]:
    """The tokens of the answer, as text; ``thinks``: with so many words of reasoning."""
    free = [f" {word}" for word in words()[len(_KNOWN) :]]
    thought, said = free[:reasoning], free[reasoning : reasoning + text]
    begin = ["<think>", _LET, *thought, ".\n", "</think>", _AFTER] if thinks else []
    call = ["<tool_call>", _CALL, "read", _WITH, _FILE, _END, "</tool_call>", "<|im_end|>"]
    return [*begin, "I", *said, ":\n", *call]


def tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level tokenizer of words and signs, with control tokens and the chat template."""
    from transformers import PreTrainedTokenizerFast

    names = byte_names()

    def spelled(text: str) -> str:
        return "".join(names[byte] for byte in text.encode())

    tokens = {names[byte]: byte for byte in range(256)}
    numbers = map(str, range(_NUMBERS))
    for text in (*_PHRASES, *_SIGNS, "I", "Let", "read", "main", *numbers, *words()):
        for form in (text, f" {text}") if text.isalnum() else (text,):
            tokens.setdefault(spelled(form), len(tokens))
    made = Tokenizer(models.BPE(vocab=tokens, merges=[], ignore_merges=True))
    cut = Regex("|".join((*(_escaped(phrase) for phrase in _PHRASES), _WORDWISE)))
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(cut, "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(list(_SPECIAL))
    made.add_tokens([AddedToken(text, normalized=False) for text in _ADDED])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=made, eos_token="<|im_end|>", clean_up_tokenization_spaces=False
    )
    fast.chat_template = TEMPLATE
    return fast


def _escaped(text: str) -> str:
    return re.sub(r"[^0-9A-Za-z]", lambda found: f"\\x{{{ord(found[0]):x}}}", text)


def save(folder: Path, architecture: str, **shape: Any) -> Path:
    """Write a model that recites, with its tokenizer; returns the folder."""
    made = tokenizer()
    shape = {
        "vocab_size": len(made),
        "max_position_embeddings": CONTEXT,
        "tie_word_embeddings": False,
        **shape,
    }
    model: Any = random_model(architecture, **shape)
    embedding, head = model.model.embed_tokens, model.lm_head
    embedding.weight, head.weight = _taught(embedding.weight, head.weight, _chain(made))
    weights = dict(tree_flatten(model.parameters()))
    folder.mkdir(parents=True, exist_ok=True)
    mx.save_safetensors(str(folder / "model.safetensors"), weights, {"format": "mlx"})
    config = {**configuration(architecture, **shape), "eos_token_id": made.eos_token_id}
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    made.save_pretrained(folder)
    return folder


def _chain(made: PreTrainedTokenizerFast) -> list[int]:
    ids = [made.convert_tokens_to_ids(token) for token in _SPECIAL]
    assert None not in ids
    chain: list[int] = made.encode(_OPENING + "".join(answer(True)), add_special_tokens=False)
    assert len(chain) == len(set(chain)) == 1 + len(answer(True))
    return chain


def _taught(
    embedding: mx.array, head: mx.array, chain: list[int], loud: float = 40.0
) -> tuple[mx.array, mx.array]:
    """Both such that each token of the chain is followed by the next."""
    embedding = embedding * loud
    before, after = mx.array(chain[:-1]), mx.array(chain[1:])
    rows = embedding[before]
    head[after] = 8 * rows / mx.linalg.norm(rows, axis=-1, keepdims=True)
    return embedding, head
