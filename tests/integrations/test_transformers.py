"""Hugging Face's trainer with label heads, against plain PyTorch loops."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    BertConfig,
    BertModel,
    LlamaConfig,
    LlamaForCausalLM,
    T5Config,
    T5EncoderModel,
    TrainingArguments,
)

from headtail import (
    HeadtailError,
    LabelHead,
    Labels,
    RowAdagrad,
    RowAdam,
    RowSGD,
    SplitOptimizer,
    scheme,
)
from headtail.integrations.transformers import (
    HeadtailForCausalLM,
    HeadtailForSequenceClassification,
    HeadtailTrainer,
)

NUM_LABELS = 30
TOKENS = 40
LENGTH = 6
LABELS = Labels.zipf(NUM_LABELS)
EVERY_LABEL = f"uniform(without-replacement):importance@{NUM_LABELS}"
"""Draws each label once: the loss is the softmax cross-entropy, and every row has entries."""


def encoder(dropout: float = 0.0) -> BertModel:
    torch.manual_seed(3)
    return BertModel(
        BertConfig(
            vocab_size=TOKENS,
            hidden_size=16,
            intermediate_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            hidden_dropout_prob=dropout,
            attention_probs_dropout_prob=dropout,
        )
    )


def classifier(name: str = EVERY_LABEL, dropout: float = 0.0, **settings):
    return HeadtailForSequenceClassification.of(encoder(dropout), LABELS, name, **settings)


def texts(n: int = 32) -> list[dict]:
    generator = torch.Generator().manual_seed(5)
    return [
        {
            "input_ids": torch.randint(1, TOKENS, (LENGTH,), generator=generator),
            "attention_mask": (torch.arange(LENGTH) < 3 + i % 4).long(),
            "labels": int(torch.randint(NUM_LABELS, (), generator=generator)),
        }
        for i in range(n)
    ]


def arguments(folder: Path, **settings) -> TrainingArguments:
    plain = {
        "per_device_train_batch_size": 8,
        "max_steps": 4,
        "learning_rate": 0.01,
        "lr_scheduler_type": "linear",
        "weight_decay": 0.1,
        "max_grad_norm": 0.5,
        "train_sampling_strategy": "sequential",
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
        "dataloader_pin_memory": False,
    }
    return TrainingArguments(str(folder), **{**plain, **settings})


def trained(model, folder: Path, data=None, table=None, resume=None, **settings) -> HeadtailTrainer:
    trainer = HeadtailTrainer(
        model,
        arguments(folder, **settings),
        train_dataset=texts() if data is None else data,
        table_optimizer=table or partial(RowAdagrad, lr=0.1),
    )
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def norms(trainer: HeadtailTrainer) -> list[float]:
    return [log["grad_norm"] for log in trainer.state.log_history if "grad_norm" in log]


def assert_same(model: nn.Module, other: nn.Module, **close) -> None:
    saved = other.state_dict()
    for name, value in model.state_dict().items():
        if close:
            torch.testing.assert_close(value, saved[name], **close, msg=lambda m, n=name: n + m)
        else:
            assert torch.equal(value, saved[name]), name


def plain_loop(max_norm: float = 0.5, steps: int = 4) -> tuple[nn.Module, nn.Parameter, list]:
    """The same training with a dense table, torch's optimisers and torch's clipping."""
    body = encoder()
    body.pooler = None
    table = nn.Parameter(classifier().head.weight.detach().clone())
    everything = [*body.parameters(), table]
    names = dict(body.named_parameters())
    plain = [p for n, p in names.items() if "LayerNorm" in n or "bias" in n]
    decayed = [p for p in names.values() if all(p is not q for q in plain)]
    optimizers = [
        torch.optim.AdamW([{"params": decayed}], lr=0.01, weight_decay=0.1),
        torch.optim.AdamW([{"params": plain}], lr=0.01, weight_decay=0.0),
        torch.optim.Adagrad([table], lr=0.1),
    ]
    schedules = [torch.optim.lr_scheduler.LambdaLR(o, lambda s: 1 - s / 4) for o in optimizers]
    seen = []
    data = texts()
    for step in range(steps):
        batch = data[8 * step : 8 * step + 8]
        ids = torch.stack([row["input_ids"] for row in batch])
        mask = torch.stack([row["attention_mask"] for row in batch])
        states = body(ids, attention_mask=mask).last_hidden_state
        hidden = (states * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        target = torch.tensor([row["labels"] for row in batch])
        F.cross_entropy(hidden @ table.T, target).backward()
        seen.append(float(nn.utils.clip_grad_norm_(everything, max_norm)))
        for optimizer, schedule in zip(optimizers, schedules, strict=True):
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
    return body, table, seen


@pytest.mark.parametrize("sparse", [True, False])
def test_training_is_that_of_a_plain_loop_with_a_dense_table(tmp_path, sparse):
    model = classifier(sparse=sparse)
    trainer = trained(model, tmp_path)
    body, table, seen = plain_loop()
    assert norms(trainer) == pytest.approx(seen, rel=1e-4)
    torch.testing.assert_close(model.head.weight, table, rtol=1e-4, atol=1e-5)
    assert_same(model.encoder, body, rtol=1e-3, atol=1e-4)


def test_the_norm_is_measured_without_clipping_too(tmp_path):
    trainer = trained(classifier(), tmp_path, max_grad_norm=0.0)
    assert norms(trainer) == pytest.approx(plain_loop(torch.inf)[2], rel=1e-4)


def test_rows_taken_inside_backward_do_not_escape_clipping(tmp_path):
    one = classifier("within-batch:tail")
    other = copy.deepcopy(one)
    trained(one, tmp_path, max_grad_norm=1e-3, table=partial(RowSGD, lr=0.5))
    trainer = trained(
        other,
        tmp_path,
        max_grad_norm=1e-3,
        table=lambda groups: RowSGD(groups, lr=0.5).inside_backward(),
    )
    assert min(norms(trainer)) > 1e-2
    moved = other.head.weight - classifier("within-batch:tail").head.weight
    assert 0 < moved.norm() < 4 * 0.5 * 1e-3
    assert_same(other, one, rtol=1e-5, atol=1e-7)


def test_schedules_reach_the_table_and_logs_show_the_encoders_rate(tmp_path):
    trainer = trained(classifier(), tmp_path)
    groups = trainer.optimizer.param_groups
    assert [group["initial_lr"] for group in groups] == [0.01, 0.01, 0.1]
    assert all(group["lr"] == 0 for group in groups)
    assert trainer.state.log_history[0]["learning_rate"] == 0.01


def test_biases_are_trained_but_not_decayed(tmp_path):
    model = classifier(bias=True)
    trainer = trained(model, tmp_path, table=partial(RowAdagrad, lr=0.1, weight_decay=0.3))
    assert [group["weight_decay"] for group in trainer.optimizer.param_groups] == [0.1, 0, 0.3, 0]
    assert model.head.bias.abs().min() > 0


@pytest.mark.parametrize("sparse", [True, False])
def test_accumulated_batches_are_one_large_batch(tmp_path, sparse):
    one = classifier(sparse=sparse)
    other = copy.deepcopy(one)
    data = texts()
    for i in (0, 1, 2, 9, 17, 18):
        data[i]["labels"] = -100  # unequal numbers, which a mean of means would weigh wrongly
    whole = trained(one, tmp_path, data, per_device_train_batch_size=16, max_steps=2)
    parts = trained(
        other, tmp_path, data, per_device_train_batch_size=4, gradient_accumulation_steps=4,
        max_steps=2,
    )  # fmt: skip
    losses = [[log["loss"] for log in t.state.log_history if "loss" in log] for t in (whole, parts)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert norms(whole) == pytest.approx(norms(parts), rel=1e-5)
    assert_same(one, other, rtol=1e-3, atol=1e-5)


class OwnModel(nn.Module):
    """A user's own module, with keywords that it ignores."""

    def __init__(self) -> None:
        super().__init__()
        self.body = encoder()
        self.head = LabelHead(LABELS, 16, scheme(EVERY_LABEL, LABELS), sparse=True)

    def forward(self, input_ids, attention_mask=None, labels=None, **kwargs):
        hidden = self.body(input_ids, attention_mask=attention_mask).last_hidden_state[:, 0]
        return {"loss": self.head(hidden, labels)}


def test_accumulation_does_not_double_the_loss_of_a_users_own_model(tmp_path):
    one = OwnModel()
    other = copy.deepcopy(one)
    settings = {"max_steps": 2, "max_grad_norm": 0.0}
    whole = trained(one, tmp_path, per_device_train_batch_size=16, **settings)
    parts = trained(other, tmp_path, gradient_accumulation_steps=2, **settings)
    assert norms(whole) == pytest.approx(norms(parts), rel=1e-5)
    assert_same(one, other, rtol=1e-3, atol=1e-5)


def test_sparse_embeddings_are_saved_with_their_weight_decay(tmp_path):
    model = OwnModel()
    old = model.body.get_input_embeddings()
    model.body.set_input_embeddings(nn.Embedding(*old.weight.shape, sparse=True))
    used = {token for text in texts() for token in text["input_ids"]}
    unused = min(set(range(len(old.weight))) - used)
    before = model.body.get_input_embeddings().weight[unused].detach().clone()
    table = partial(RowAdagrad, lr=0.1, weight_decay=0.5)
    trained(model, tmp_path, table=table, lr_scheduler_type="constant")
    saved = model.state_dict()["body.embeddings.word_embeddings.weight"][unused]
    torch.testing.assert_close(saved, before * 0.95**4)


def test_a_model_of_transformers_itself_is_trained_as_always(tmp_path):
    trainer = HeadtailTrainer(llama(), arguments(tmp_path), train_dataset=sequences())
    trainer.train()
    assert trainer.model_accepts_loss_kwargs
    assert type(trainer.optimizer.optimizer) is torch.optim.AdamW


def test_an_optimiser_of_your_own_is_used_as_it_is(tmp_path):
    one = classifier()
    other = copy.deepcopy(one)
    trained(one, tmp_path, weight_decay=0.0)
    optimizer = SplitOptimizer(
        RowAdagrad(other.head.parameters(), lr=0.1),
        torch.optim.AdamW(other.encoder.parameters(), lr=0.01, weight_decay=0.0),
    )
    trainer = HeadtailTrainer(
        other, arguments(tmp_path), train_dataset=texts(), optimizers=(optimizer, None)
    )
    trainer.train()
    assert_same(one, other, rtol=1e-4, atol=1e-6)


def test_a_trainer_evaluates_without_training(tmp_path):
    trainer = HeadtailTrainer(classifier(), arguments(tmp_path), compute_metrics=top_one)
    assert 0 <= trainer.evaluate(texts(6))["eval_right"] <= 1


DECAYED = partial(RowAdam, lr=0.05, weight_decay=0.3)
SHUFFLED = {"train_sampling_strategy": "random", "max_steps": 8}


@pytest.mark.parametrize("name", ["frequency:tail@8", "queue(64):tail@8"])
def test_a_run_resumes_bit_for_bit(tmp_path, name):
    whole = classifier(name, dropout=0.1)
    stopped = copy.deepcopy(whole)
    trained(whole, tmp_path / "whole", table=DECAYED, **SHUFFLED)
    trained(stopped, tmp_path, table=DECAYED, save_strategy="steps", save_steps=3, **SHUFFLED)
    assert_same(whole, stopped)  # saving changed nothing
    resumed = classifier(name, dropout=0.1)
    nn.init.zeros_(resumed.head.weight)
    checkpoint = str(tmp_path / "checkpoint-3")
    trained(resumed, tmp_path, table=DECAYED, resume=checkpoint, **SHUFFLED)
    assert_same(whole, resumed)


def test_a_checkpoint_is_a_model_with_its_weight_decay(tmp_path):
    model = classifier("frequency:tail@8")
    trainer = trained(model, tmp_path, table=DECAYED, save_strategy="steps", save_steps=4)
    assert trainer.state.global_step == 4
    loaded = HeadtailForSequenceClassification.from_pretrained(tmp_path / "checkpoint-4")
    model.head.flush()
    assert_same(loaded, model)


def top_one(evaluation) -> dict[str, float]:
    best = evaluation.predictions
    assert best.shape == (len(best), 10)
    return {"right": float(np.mean(best[:, 0] == evaluation.label_ids))}


def test_evaluation_and_prediction_return_the_best_labels(tmp_path):
    model = classifier()
    trainer = trained(model, tmp_path)
    trainer.compute_metrics = top_one
    data = texts(10)
    metrics = trainer.evaluate(data)
    batch = trainer.data_collator(data)
    hidden = model.hidden(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"])
    scores = hidden @ model.head.weight.T
    assert metrics["eval_right"] == pytest.approx(
        float((scores.argmax(1) == batch["labels"]).float().mean())
    )
    assert metrics["eval_loss"] == pytest.approx(
        float(F.cross_entropy(scores.detach(), batch["labels"]))
    )
    unlabelled = [{k: v for k, v in row.items() if k != "labels"} for row in data]
    predicted = trainer.predict(unlabelled).predictions
    assert np.array_equal(predicted, scores.topk(10).indices.numpy())
    best = model.topk(3, input_ids=batch["input_ids"], attention_mask=batch["attention_mask"])
    torch.testing.assert_close(best.values, scores.topk(3).values)


def test_bfloat16_autocast_trains(tmp_path):
    exact = classifier()
    narrow = copy.deepcopy(exact)
    one = trained(exact, tmp_path)
    other = trained(narrow, tmp_path, bf16=True)
    assert narrow.head.weight.dtype == torch.float32
    assert norms(other) == pytest.approx(norms(one), rel=0.05)
    assert norms(other) != norms(one)


def test_columns_of_the_encoder_are_kept(tmp_path):
    datasets = pytest.importorskip("datasets")
    rows = [{k: torch.as_tensor(v).tolist() for k, v in row.items()} for row in texts()]
    data = datasets.Dataset.from_list([{**row, "unused": "x"} for row in rows])
    one = classifier()
    other = copy.deepcopy(one)
    trained(one, tmp_path)
    trained(other, tmp_path, data)
    assert_same(one, other)


def test_saved_models_need_no_labels_in_a_fresh_process(tmp_path):
    names = [f"label {i}" for i in range(NUM_LABELS)]
    labels = Labels.from_counts(LABELS.counts, smoothing=0.5, names=names)
    settings = {"bias": True, "options": {"temperature": 0.5, "num_negatives": 8}, "top": 4}
    model = HeadtailForSequenceClassification.of(encoder(), labels, "frequency:tail", **settings)
    model.save_pretrained(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"config.json", "model.safetensors"}
    assert "id2label" not in json.loads((tmp_path / "config.json").read_text())
    ids = torch.arange(1, 13).reshape(2, 6)
    torch.manual_seed(0)
    model.eval()
    expected = model(ids, labels=torch.tensor([3, 4]))
    code = f"""
import torch
from headtail.integrations.transformers import HeadtailForSequenceClassification
model = HeadtailForSequenceClassification.from_pretrained({str(tmp_path)!r})
torch.manual_seed(0)
out = model(torch.arange(1, 13).reshape(2, 6), labels=torch.tensor([3, 4]))
labels = model.head.labels
print(out.loss.item().hex(), out.top_labels.tolist(), labels.names[3], labels.smoothing)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    best = expected.top_labels.tolist()
    assert done.stdout.strip() == f"{expected.loss.item().hex()} {best} label 3 0.5"


@pytest.mark.parametrize("name", ["log-uniform:tail@8", "queue(16):tail", "block:importance@4"])
def test_samplers_are_saved_with_their_state(tmp_path, name):
    model = classifier(name)
    for row in texts(4):
        model(row["input_ids"][None], labels=torch.tensor([row["labels"]]))
    model.save_pretrained(tmp_path, max_shard_size="2KB")  # in several files
    loaded = HeadtailForSequenceClassification.from_pretrained(tmp_path)
    assert_same(loaded, model)
    batch = {"input_ids": torch.ones(2, 3).long(), "labels": torch.tensor([0, 1])}
    losses = []
    for one in (model.train(), loaded.train()):
        torch.manual_seed(0)
        losses.append(one(**batch).loss)
    assert losses[0] == losses[1]


def test_digits_are_kept_or_chosen(tmp_path):
    model = HeadtailForSequenceClassification.of(
        encoder().to(torch.bfloat16), LABELS, EVERY_LABEL, bias=True
    )
    model.encoder.encoder.layer[0].output.LayerNorm.float()
    nn.init.normal_(model.head.bias)
    model.save_pretrained(tmp_path)
    load = HeadtailForSequenceClassification.from_pretrained
    loaded = load(tmp_path)
    assert_same(loaded, model)
    assert (loaded.head.weight.dtype, loaded.head.bias.dtype) == (torch.bfloat16, torch.float32)
    assert load(tmp_path, dtype=torch.float32).head.weight.dtype == torch.float32


def test_auto_classes_find_saved_models(tmp_path):
    model = classifier()
    model.save_pretrained(tmp_path / "classifier")
    assert_same(AutoModelForSequenceClassification.from_pretrained(tmp_path / "classifier"), model)
    model = language_model(True)
    model.save_pretrained(tmp_path / "language model")
    assert_same(AutoModelForCausalLM.from_pretrained(tmp_path / "language model"), model)


def test_an_encoder_with_tied_weights_of_its_own_is_made_again(tmp_path):
    sizes = {"vocab_size": TOKENS, "d_model": 16, "d_kv": 8, "d_ff": 16}
    body = T5EncoderModel(T5Config(**sizes, num_layers=1, num_heads=2))
    model = HeadtailForSequenceClassification.of(body, LABELS, EVERY_LABEL)
    model.save_pretrained(tmp_path)
    loaded = HeadtailForSequenceClassification.from_pretrained(tmp_path)
    assert_same(loaded, model)
    assert loaded.encoder.encoder.embed_tokens.weight is loaded.encoder.shared.weight


class OwnEncoder(BertModel):
    """Not a class of transformers."""


def test_an_encoder_of_your_own_is_passed_again(tmp_path):
    model = HeadtailForSequenceClassification.of(OwnEncoder(encoder().config), LABELS, EVERY_LABEL)
    model.save_pretrained(tmp_path)
    load = HeadtailForSequenceClassification.from_pretrained
    with pytest.raises(HeadtailError, match=r"`OwnEncoder` is not one of .* as `encoder`\."):
        load(tmp_path)
    assert_same(load(tmp_path, encoder=OwnEncoder(encoder().config)), model)


def test_several_labels_per_text_are_all_positives(tmp_path):
    model = classifier("softmax", sparse=False)
    ids = torch.arange(1, 13).reshape(2, 6)
    labels = torch.tensor([[3, 4], [5, -100]])
    scores = (model.hidden(input_ids=ids) @ model.head.weight.T)[[0, 0, 1]]
    torch.testing.assert_close(
        model(ids, labels=labels, num_items_in_batch=torch.tensor(6)).loss,
        F.cross_entropy(scores, torch.tensor([3, 4, 5])) / 2,
    )


def test_the_best_model_is_loaded_at_the_end_and_checkpointing_of_activations_works(tmp_path):
    plain = classifier()
    model = copy.deepcopy(plain)
    trained(plain, tmp_path / "plain")
    trainer = HeadtailTrainer(
        model,
        arguments(
            tmp_path,
            gradient_checkpointing=True,
            load_best_model_at_end=True,
            eval_strategy="steps",
            save_strategy="steps",
            save_steps=2,
            eval_steps=2,
        ),
        train_dataset=texts(),
        eval_dataset=texts(),
        table_optimizer=partial(RowAdagrad, lr=0.1),
    )
    trainer.train()
    assert trainer.state.best_model_checkpoint == str(tmp_path / "checkpoint-4")
    assert_same(model, plain, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("pooling", ["mean", "first", "last", "pooler"])
def test_pooling(pooling):
    model = classifier(pooling=pooling)
    body = encoder()
    ids = torch.arange(1, 13).reshape(2, 6)
    mask = torch.tensor([[1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 1]])
    out = body(ids, attention_mask=mask)
    states = out.last_hidden_state
    expected = {
        "mean": torch.stack([states[0, :4].mean(0), states[1].mean(0)]),
        "first": states[:, 0],
        "last": torch.stack([states[0, 3], states[1, 5]]),
        "pooler": out.pooler_output,
    }[pooling]
    torch.testing.assert_close(model.hidden(input_ids=ids, attention_mask=mask), expected)


# Language models


LM = f"uniform(without-replacement):importance@{TOKENS}"


def llama(**settings) -> LlamaForCausalLM:
    torch.manual_seed(4)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=TOKENS,
            hidden_size=16,
            intermediate_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=2,
            **settings,
        )
    )


def language_model(tied: bool, name: str = LM, **settings) -> HeadtailForCausalLM:
    labels = Labels.zipf(TOKENS)
    return HeadtailForCausalLM.of(
        llama(tie_word_embeddings=tied), labels, name, tied=tied, **settings
    )


def sequences(n: int = 16) -> list[dict]:
    generator = torch.Generator().manual_seed(6)
    rows = [torch.randint(TOKENS, (LENGTH,), generator=generator) for _ in range(n)]
    return [
        {"input_ids": row, "labels": torch.where(torch.arange(LENGTH) < i % 4, -100, row)}
        for i, row in enumerate(rows)
    ]


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("sparse", [True, False])
def test_a_language_model_is_that_of_transformers(tied, sparse):
    model = language_model(tied, sparse=sparse)
    reference = llama(tie_word_embeddings=tied)
    rows = sequences(5)
    batch = {name: torch.stack([row[name] for row in rows]) for name in ("input_ids", "labels")}
    loss = model(**batch).loss
    expected = reference(**batch)
    torch.testing.assert_close(loss, expected.loss)
    loss.backward()
    expected.loss.backward()
    grad = model.head.weight.grad
    assert grad.is_sparse == sparse
    torch.testing.assert_close(grad.to_dense(), reference.lm_head.weight.grad)
    best = model.eval()(batch["input_ids"]).top_labels
    assert torch.equal(best, expected.logits.topk(10).indices)
    table = dict(model.named_parameters())
    assert ("encoder.embed_tokens.weight" in table) == (not tied)


@pytest.mark.parametrize("tied", [True, False])
def test_a_language_model_trains_with_accumulation(tmp_path, tied):
    one = language_model(tied)
    other = copy.deepcopy(one)
    data = sequences()
    trained(one, tmp_path, data, per_device_train_batch_size=8, max_steps=2)
    trained(
        other, tmp_path, data, per_device_train_batch_size=2, gradient_accumulation_steps=4,
        max_steps=2,
    )  # fmt: skip
    assert_same(one, other, rtol=1e-3, atol=1e-5)


def test_a_tied_language_model_is_saved_once_and_evaluated(tmp_path):
    model = language_model(True, "frequency:tail@8")
    trainer = trained(model, tmp_path, sequences(), table=DECAYED)
    metrics = trainer.evaluate(sequences(4))
    assert metrics["eval_loss"] > 0
    assert trainer.predict(sequences(4)).predictions.shape == (4, LENGTH, 10)
    trainer.save_model(tmp_path / "saved")
    loaded = HeadtailForCausalLM.from_pretrained(tmp_path / "saved")
    assert_same(loaded, model)
    ids = sequences(1)[0]["input_ids"][None]
    assert torch.equal(loaded(ids).top_labels, model.eval()(ids).top_labels)
    assert loaded.get_input_embeddings().weight is loaded.head.weight


def test_shifted_labels_of_a_collator_are_used_as_they_are():
    model = language_model(False)
    ids = sequences(1)[0]["input_ids"][None]
    shifted = torch.cat([ids[:, 1:], torch.tensor([[-100]])], 1)
    torch.testing.assert_close(
        model(ids, labels=ids, shift_labels=shifted).loss, model(ids, labels=ids).loss
    )


# Bad use


def test_an_optimiser_that_does_not_know_sparse_rows_is_refused(tmp_path):
    with pytest.raises(HeadtailError, match=r"`AdamW` does not know row-sparse.* \[30, 16\]"):
        trained(classifier(), tmp_path, table=partial(torch.optim.AdamW, lr=0.1))
    model = classifier()
    optimizers = (torch.optim.Adam(model.parameters()), None)
    trainer = HeadtailTrainer(
        model, arguments(tmp_path), train_dataset=texts(), optimizers=optimizers
    )
    with pytest.raises(HeadtailError, match="`Adam` does not know row-sparse"):
        trainer.train()
    with pytest.raises(HeadtailError, match="Leave out one of them"):
        HeadtailTrainer(
            model, arguments(tmp_path), optimizers=optimizers, table_optimizer=RowAdagrad
        )
    made = RowAdagrad(model.head.parameters(), lr=0.1)
    with pytest.raises(HeadtailError, match="`table_optimizer` must make an optimiser from param"):
        HeadtailTrainer(model, arguments(tmp_path), table_optimizer=made)


def test_a_dense_table_may_have_any_optimiser(tmp_path):
    model = classifier(sparse=False)
    before = model.head.weight.detach().clone()
    trained(model, tmp_path, table=partial(torch.optim.AdamW, lr=0.1))
    assert not torch.equal(model.head.weight, before)


def test_label_smoothing_of_the_trainer_is_refused(tmp_path):
    with pytest.raises(HeadtailError, match="`label_smoothing_factor` needs the scores of all"):
        HeadtailTrainer(classifier(), arguments(tmp_path, label_smoothing_factor=0.1))


def test_labels_that_do_not_fit_are_refused(tmp_path):
    ids = torch.ones(2, 3).long()
    model = classifier()
    with pytest.raises(HeadtailError, match=r"`labels` must be ids of shape \[2\].* shape \[3\]"):
        model(ids, labels=torch.tensor([1, 2, 3]))
    with pytest.raises(HeadtailError, match=r"torch\.bool of shape"):
        model(ids, labels=torch.ones(2, NUM_LABELS).bool())
    with pytest.raises(HeadtailError, match="from 0 to 29, but got 30"):
        model(ids, labels=torch.tensor([1, 30]))
    with pytest.raises(HeadtailError, match=r"token ids of shape \[2, 3\].* got \[2\]"):
        language_model(False)(ids, labels=torch.tensor([1, 2]))
    with pytest.raises(HeadtailError, match="has 30 labels, but the model 40 tokens"):
        HeadtailForCausalLM.of(llama(), LABELS, LM)
    model.save_pretrained(tmp_path)
    other = HeadtailForSequenceClassification.of(encoder(), Labels.zipf(31), "frequency:tail")
    with pytest.raises(HeadtailError, match="for 30 labels with other counts than the 31 labels"):
        trained(other, tmp_path, resume=str(tmp_path))


def test_settings_that_do_not_fit_are_refused(tmp_path):
    with pytest.raises(HeadtailError, match="`pooling` must be one of"):
        classifier(pooling="max")
    with pytest.raises(HeadtailError, match='`reduction` must be "mean"'):
        classifier(options={"reduction": "sum"})
    with pytest.raises(HeadtailError, match="`encoder` must be a PreTrainedModel"):
        HeadtailForSequenceClassification.of(nn.Linear(2, 2), LABELS, EVERY_LABEL)
    settings = {"pooling": "pooler"}
    model = HeadtailForSequenceClassification.of(llama(), LABELS, "frequency:tail", **settings)
    with pytest.raises(HeadtailError, match="`LlamaModel` has no pooler"):
        model(torch.ones(2, 3).long())
    with pytest.raises(HeadtailError, match=r"`sprase` is not a setting of .* mean `sparse`"):
        classifier(sprase=True)
    with pytest.raises(HeadtailError, match="`options` must be numbers and strings"):
        classifier(options={"temperature": torch.tensor(1.0)})
    with pytest.raises(HeadtailError, match="`scheme` must be a str"):
        classifier(scheme(EVERY_LABEL, LABELS))  # pyright: ignore[reportArgumentType]
    with pytest.raises(HeadtailError, match="`device_map` is not an argument here"):
        HeadtailForSequenceClassification.from_pretrained(tmp_path, device_map="auto")
    encoder().save_pretrained(tmp_path)
    with pytest.raises(HeadtailError, match="was not saved by a model of headtail"):
        HeadtailForSequenceClassification.from_pretrained(tmp_path)


def test_sparse_heads_are_refused_where_gradients_are_sharded(tmp_path):
    trainer = HeadtailTrainer(classifier(), arguments(tmp_path), train_dataset=texts())
    trainer.args._n_gpu = 2
    with pytest.raises(HeadtailError, match="one process each, started by `torchrun`"):
        trainer._wrap_model(trainer.model)
