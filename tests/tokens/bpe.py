"""A small real tokenizer: byte-level BPE with a `<s>` in front of each text, as Llama's has."""

from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers

CORPUS = ["the quick brown fox jumps over the lazy dog", "a node serves a request and counts its tokens"] * 20


def train(path: Path, *, truncated: bool = False) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=["<s>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    if truncated:
        tokenizer.enable_truncation(max_length=8)
        tokenizer.enable_padding(length=64)
    tokenizer.save(str(path))
    return tokenizer
