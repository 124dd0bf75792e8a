"""The tokenizer: byte-level BPE with 1,024 tokens.

Owns how text is split. Digits stand alone. A space belongs to the lower-case word after it, but
never to a capital: a name then has the same tokens in a sentence and in JSON, which is what lets a
small model copy names it has never met. BPE sees ASCII only, so é, 你 and emoji take several
tokens.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from demo_model.chat import CHAT_TEMPLATE, END, END_OF_TEXT, MARK_TOKENS, SPECIAL_TOKENS

VOCABULARY: Final = 1024
CONTEXT: Final = 2048
_WORDS: Final = r"\p{N}| ?\p{Ll}+|\p{Lu}\p{Ll}*|\p{L}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def train(texts: Iterable[str]) -> Tokenizer:
    """A tokenizer for these texts."""
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
        vocab_size=VOCABULARY,
        special_tokens=list(added),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    marks = (*SPECIAL_TOKENS, *MARK_TOKENS)
    tokenizer.train_from_iterator((_ascii(text, marks) for text in texts), trainer)
    tokenizer.add_special_tokens([token for token in added if token.special])
    tokenizer.add_tokens([token for token in added if not token.special])
    return tokenizer


def save(tokenizer: Tokenizer, folder: Path) -> None:
    """Write the files that transformers and mlx-lm read."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": None,
        "eos_token": END,
        "pad_token": END_OF_TEXT,
        "unk_token": None,
        "add_bos_token": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": CONTEXT,
    }
    text = json.dumps(config, indent=2, ensure_ascii=False)
    (folder / "tokenizer_config.json").write_text(text + "\n", encoding="utf-8")
    special = {"eos_token": END, "pad_token": END_OF_TEXT}
    (folder / "special_tokens_map.json").write_text(json.dumps(special, indent=2) + "\n")
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")


def _ascii(text: str, marks: Iterable[str]) -> str:
    for mark in marks:
        text = text.replace(mark, "\n")
    return text.encode("ascii", "ignore").decode()
