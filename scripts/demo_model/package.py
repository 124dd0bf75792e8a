"""The model folders as shipped, and the tokenizer in them: byte-level BPE with 1,024 tokens.

Each digit is a token. A space belongs to the lower-case word after it, but never to a capital: so a
name has the same tokens in a sentence and in JSON, which lets a small model copy names it has never
seen. BPE is trained on ASCII only, so é, 你 and emoji take several tokens.
"""

import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, cast

import mlx.core as mx
from mlx_lm.utils import load_model
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from demo_model import forms, network
from demo_model.batches import token_id
from demo_model.chat import END, END_OF_TEXT, MARK_TOKENS, SPECIAL_TOKENS
from demo_model.drawing import TEXTS
from demo_model.head import Head
from demo_model.train import flatten

HEAD: Final = "mtp.safetensors"  # next to model.safetensors; mlx-lm reads only model*.safetensors
_LAST: Final = network.config("main")["num_hidden_layers"]  # the head's place among the layers
_WORDS: Final = r"\p{N}| ?\p{Ll}+|\p{Lu}\p{Ll}*|\p{L}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


# ---- the tokenizer -----------------------------------------------------------------------------


def train_tokenizer(texts: Iterable[str]) -> Tokenizer:
    """A tokenizer trained on these texts."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_WORDS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    added = [AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS]
    added += [AddedToken(token, special=False, normalized=False) for token in MARK_TOKENS]
    trainer = trainers.BpeTrainer(
        vocab_size=network.config("main")["vocab_size"],
        special_tokens=list(added),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    marks = (*SPECIAL_TOKENS, *MARK_TOKENS)
    tokenizer.train_from_iterator((_ascii(text, marks) for text in texts), trainer)
    tokenizer.add_special_tokens([token for token in added if token.special])
    tokenizer.add_tokens([token for token in added if not token.special])
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Write the files that transformers and mlx-lm read."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    for name in ("tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja"):
        shutil.copy(TEXTS / name, folder)


def _ascii(text: str, marks: Iterable[str]) -> str:
    for mark in marks:
        text = text.replace(mark, "\n")
    return text.encode("ascii", "ignore").decode()


# ---- the folders -------------------------------------------------------------------------------


def save(size: str, weights: dict[str, Any], words: Tokenizer, folder: Path) -> None:
    """Write the main or the draft model to `folder`, replacing its contents."""
    shutil.rmtree(folder, ignore_errors=True)
    save_tokenizer(words, folder)
    ends = [token_id(words, END), token_id(words, END_OF_TEXT)]
    pad = token_id(words, END_OF_TEXT)
    config = network.config(size) | {"eos_token_id": ends, "pad_token_id": pad}
    _write(folder / "config.json", config)
    generation = {"do_sample": False, "eos_token_id": ends, "pad_token_id": pad}
    _write(folder / "generation_config.json", generation)
    mx.save_safetensors(str(folder / "model.safetensors"), flatten(weights), {"format": "mlx"})


def model(folder: Path) -> Any:
    """The model in `folder`, without its tokenizer."""
    return load_model(folder)[0]


def save_head(weights: dict[str, Any], folder: Path) -> None:
    """Write the head next to the main model, under the names of a layer after its last one."""
    arrays = {
        name.replace(".0.", f".{_LAST}.", 1): array for name, array in flatten(weights).items()
    }
    mx.save_safetensors(str(folder / HEAD), arrays, {"format": "mlx"})


def head(folder: Path) -> Head:
    """The head of the main model in `folder`."""
    arrays = cast("dict[str, mx.array]", mx.load(str(folder / HEAD)))
    made = Head()
    made.load_weights(
        [(name.replace(f".{_LAST}.", ".0.", 1), array) for name, array in arrays.items()]
    )
    return made


def save_schemas(file: Path) -> None:
    """Write the schemas of the record shapes, for users who constrain the model's JSON."""
    _write(file, forms.catalogue())


def _write(path: Path, value: dict[str, Any]) -> None:
    text = json.dumps(value, indent=2, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8")
