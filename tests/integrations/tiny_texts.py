"""A tiny random text model and pairs of texts with item ids; nothing is downloaded."""

from __future__ import annotations

from pathlib import Path

import torch
from datasets import Dataset
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

WORDS = [f"w{i}" for i in range(40)]


def text_model(folder: Path, dropout: float = 0.0, seed: int = 0) -> SentenceTransformer:
    """A BERT of one layer of width 16 with random weights."""
    words = {word: i for i, word in enumerate(["[PAD]", "[UNK]", *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", model_max_length=16
    )
    fast.save_pretrained(folder)
    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=len(words),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=16,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
    )
    BertModel(config).save_pretrained(folder)
    return saved_text_model(folder)


def saved_text_model(folder: Path) -> SentenceTransformer:
    """The model that `text_model` wrote there."""
    transformer = Transformer(str(folder))
    transformer.model.pooler = None  # unused: DistributedDataParallel would wait for its gradients
    pooling = Pooling(transformer.get_embedding_dimension())
    return SentenceTransformer(modules=[transformer, pooling], device="cpu")


def pairs(size: int = 32, items: int = 8, hard: int = 0, seed: int = 0) -> Dataset:
    """Anchors and positives of a few words, the item's id, and hard negatives with theirs."""
    generator = torch.Generator().manual_seed(seed)
    weights = 1 / torch.arange(1.0, items + 1)
    columns: dict[str, list[str]] = {"anchor": [], "positive": [], "item": []}
    for k in range(hard):
        columns |= {f"negative_{k}": [], f"negative_item_{k}": []}
    for _ in range(size):
        item, *others = torch.multinomial(weights, 1 + hard, generator=generator).tolist()
        noise = torch.randint(20, (3,), generator=generator).tolist()
        columns["anchor"].append(" ".join(f"w{i}" for i in [*noise, 20 + item]))
        columns["positive"].append(text_of(item))
        columns["item"].append(f"item {item}")
        for k, other in enumerate(others):
            columns[f"negative_{k}"].append(text_of(other))
            columns[f"negative_item_{k}"].append(f"item {other}")
    return Dataset.from_dict(columns)


def text_of(item: int) -> str:
    return f"w{20 + item} w{30 + item % 10}"
