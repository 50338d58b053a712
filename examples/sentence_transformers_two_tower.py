"""Two towers in sentence-transformers, on generated texts: which items each weighting finds.

Run: python examples/sentence_transformers_two_tower.py
"""

import tempfile

import torch
from datasets import Dataset
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from tokenizers import Tokenizer, models, pre_tokenizers

from headtail import Labels
from headtail.integrations.sentence_transformers import TwoTowerLoss, count_items, with_item_ids

ITEMS, WORDS = 200, 40
torch.manual_seed(0)
# Each item is asked for with three words, which other items have too.
TOPICS = torch.stack([torch.randperm(WORDS)[:3] for _ in range(ITEMS)])


def queries(items: torch.Tensor) -> list[str]:
    """The three words of each item, one of them replaced at random."""
    words = TOPICS[items]
    words[torch.arange(len(items)), torch.randint(3, (len(items),))] = torch.randint(
        WORDS, (len(items),)
    )
    return [" ".join(f"w{word}" for word in row) for row in words.tolist()]


def static_model() -> SentenceTransformer:
    """A random vector for each word and for the name of each item."""
    words = [f"w{i}" for i in range(WORDS)] + [f"item{i}" for i in range(ITEMS)]
    vocabulary = {word: i for i, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    torch.manual_seed(1)
    static = StaticEmbedding(tokenizer, embedding_dim=32)
    return SentenceTransformer(modules=[static], device="cpu")


def trained(train: Dataset, labels: Labels, weighting: str) -> SentenceTransformer:
    """A model trained with one weighting."""
    model = static_model()
    loss = TwoTowerLoss(model, labels, weighting)
    with tempfile.TemporaryDirectory() as folder:
        args = SentenceTransformerTrainingArguments(
            folder,
            num_train_epochs=5,
            per_device_train_batch_size=64,
            learning_rate=0.05,
            report_to="none",
            logging_strategy="no",
            save_strategy="no",
            disable_tqdm=True,
            use_cpu=True,
        )
        SentenceTransformerTrainer(model, args, train, loss=loss).train()
    return model


def main() -> None:
    """Train with three weightings, and print how often the right item is first."""
    drawn = torch.multinomial(1 / torch.arange(1.0, ITEMS + 1), 6000, replacement=True)
    texts = [f"item{i}" for i in range(ITEMS)]
    train = Dataset.from_dict(
        {"query": queries(drawn), "item": [texts[i] for i in drawn], "item_id": drawn.tolist()}
    )
    labels = count_items(train, "item_id")
    train = with_item_ids(train, "item_id", labels)

    every_item = torch.arange(ITEMS).repeat(10)
    asked = queries(every_item)
    for weighting in ("infonce", "importance", "tail"):
        model = trained(train, labels, weighting)
        scores = model.similarity(model.encode(asked), model.encode(texts))
        right = (scores.argmax(1) == every_item).float().reshape(10, ITEMS).mean(0)
        head, tail = right[:20].mean(), right[100:].mean()
        print(f"{weighting:12} right in the head {head:.0%}, in the tail {tail:.0%}")


if __name__ == "__main__":
    main()
