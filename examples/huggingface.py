"""Hugging Face's trainer: a tiny BERT with 50,000 labels, trained on a few sampled negatives."""

import tempfile
from functools import partial

import torch
from transformers import BertConfig, BertModel, TrainingArguments, logging

import headtail as ht
from headtail.integrations.transformers import HeadtailForSequenceClassification, HeadtailTrainer

logging.disable_progress_bar()
torch.manual_seed(0)
NUM_LABELS = 50_000

# Texts of two words; the label of a text follows from its words. Use your own data set and
# `AutoModel.from_pretrained("…")` instead.
words = torch.randint(0, 25, (6_000, 2)) + torch.tensor([0, 25])
classes = words[:, 0] * 1_900 + words[:, 1] * 80
rows = [
    {"input_ids": text, "labels": int(label)} for text, label in zip(words, classes, strict=True)
]
train, test = rows[:5_500], rows[5_500:]
size = {"vocab_size": 50, "hidden_size": 64, "intermediate_size": 128}
encoder = BertModel(BertConfig(**size, num_hidden_layers=1, num_attention_heads=4))

labels = ht.Labels.from_targets(classes, num_labels=NUM_LABELS, smoothing=1)
model = HeadtailForSequenceClassification.of(encoder, labels, "frequency:tail@256")
folder = tempfile.mkdtemp()
trainer = HeadtailTrainer(
    model,
    TrainingArguments(
        folder,
        num_train_epochs=3,
        per_device_train_batch_size=64,
        learning_rate=2e-3,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        dataloader_pin_memory=False,
    ),
    train_dataset=train,
    table_optimizer=partial(ht.RowAdagrad, lr=0.1),
    compute_metrics=lambda out: {"right": float((out.predictions[:, 0] == out.label_ids).mean())},
)
trainer.train()
print(f"right among {NUM_LABELS:,} labels: {trainer.evaluate(test)['eval_right']:.1%}")

model.save_pretrained(folder)
loaded = HeadtailForSequenceClassification.from_pretrained(folder)  # needs no labels
best = loaded.topk(3, input_ids=words[-1:])
print("best labels:", best.indices.tolist(), "right:", int(classes[-1]))
