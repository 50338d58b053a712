"""Two towers in sentence-transformers: values, gradients, processes, the trainer, errors."""

from __future__ import annotations

import copy
import math
import os

import pytest
import torch
from datasets import Dataset
from sentence_transformers import SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.sentence_transformer import losses
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from torch import nn

from headtail import ArcFace, Equalised, FromMargin, HeadtailError, Labels
from headtail.integrations.sentence_transformers import (
    CachedTwoTowerLoss,
    TwoTowerLoss,
    count_items,
    with_item_ids,
)
from tests.integrations.tiny_texts import pairs, saved_text_model, text_model

f64 = torch.float64
LABELS = Labels.from_counts([40, 25, 10, 5, 3, 1, 1, 1, 1, 1])
DIFFERENT = torch.tensor([3, 1, 0, 2, 5, 4])
REPEATED = torch.tensor([0, 1, 0, 2, 1, 5])


class Columns(nn.Module):
    """A model whose embeddings are given."""

    def forward(self, features):
        return {"sentence_embedding": features["x"]}


def columns(hard: int = 0, dtype=f64, size: int = 6) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(4)
    shape = (2 + hard, size, 5)
    return list(torch.randn(shape, generator=generator, dtype=dtype).requires_grad_().unbind())


def written_out(embedded, ids, log_w, scale=20.0):
    """log[1 + Σ w·e^(s·(f' − f))], example by example; `log_w(y, y', hard)` in one sum."""
    anchors, positives, *hard = [nn.functional.normalize(x, dim=-1) for x in embedded]
    ids = ids.reshape(len(anchors), -1)
    total = 0.0
    for i, anchor in enumerate(anchors):
        own = ids[i, 0].item()
        terms = [torch.zeros((), dtype=anchor.dtype)]
        for k, column in enumerate([positives, *hard]):
            for j, item in enumerate(column):
                other = ids[j, k].item() if k < ids.shape[1] else -1
                if own != other:
                    gap = scale * (anchor @ item - anchor @ positives[i])
                    terms.append(gap + log_w(own, other, k > 0))
        total = total + torch.stack(terms).logsumexp(0)
    return total / len(anchors)


def log_prior(label: int) -> float:
    return float(LABELS.prior[label].log())


WEIGHTS = {
    "infonce": lambda y, other, hard, m: 0.0,
    "importance": lambda y, other, hard, m: 0.0 if hard else -math.log(m) - log_prior(other),
    "tail(0.5)": lambda y, other, hard, m: (
        0.5 * (log_prior(other) - log_prior(y)) - (0.0 if hard else math.log(m) + log_prior(other))
    ),
    "constant": lambda y, other, hard, m: -math.log(m),
    "relative": lambda y, other, hard, m: (
        log_prior(y) + (math.log(m) if hard else -log_prior(other))
    ),
}
WEIGHTS["unit"] = WEIGHTS["importance"]
WEIGHTS["logit-adjusted(0.5)"] = WEIGHTS["tail(0.5)"]


@pytest.mark.parametrize("hard", [0, 2])
@pytest.mark.parametrize("weighting", WEIGHTS)
def test_the_loss_is_the_equation_written_out(weighting, hard):
    embedded = columns(hard)
    ids = torch.stack([REPEATED, (REPEATED + 3) % 6, (REPEATED * 2 + 1) % 6][: 1 + hard], 1)
    loss = TwoTowerLoss(Columns(), LABELS, weighting)
    got = loss([{"x": x} for x in embedded], ids if hard else ids[:, 0])
    wanted = written_out(embedded, ids, lambda y, o, h: WEIGHTS[weighting](y, o, h, m=5.0))
    assert got.item() == pytest.approx(wanted.item(), rel=1e-13)
    for x, gradient, truth in zip(
        embedded,
        torch.autograd.grad(got, embedded),
        torch.autograd.grad(wanted, embedded),
        strict=True,
    ):
        assert (gradient - truth).abs().max() <= 1e-13 * max(1, truth.abs().max()), x.shape


@pytest.mark.parametrize("hard", [0, 2])
def test_infonce_of_different_items_is_multiple_negatives_ranking(hard):
    embedded = columns(hard, torch.float32)
    features = [{"x": x} for x in embedded]
    ours = TwoTowerLoss(Columns(), LABELS, "infonce")(features, DIFFERENT)
    theirs = losses.MultipleNegativesRankingLoss(Columns())(features, DIFFERENT)
    torch.testing.assert_close(ours, theirs)
    for one, other in zip(
        torch.autograd.grad(ours, embedded), torch.autograd.grad(theirs, embedded), strict=True
    ):
        torch.testing.assert_close(one, other)


def test_collisions_by_slot_are_multiple_negatives_ranking_with_repeated_items():
    features = [{"x": x} for x in columns()]
    by_id = TwoTowerLoss(Columns(), LABELS, "infonce")(features, REPEATED)
    by_slot = TwoTowerLoss(Columns(), LABELS, "infonce", collisions="slot")(features, REPEATED)
    theirs = losses.MultipleNegativesRankingLoss(Columns())(features, REPEATED)
    torch.testing.assert_close(by_slot, theirs)
    assert by_id < theirs


def test_a_weighting_object_and_a_decoupled_loss_are_taken():
    features = [{"x": x} for x in columns()]
    given = TwoTowerLoss(Columns(), LABELS, FromMargin(Equalised(LABELS)))(features, REPEATED)
    named = TwoTowerLoss(Columns(), LABELS, "equalised")(features, REPEATED)
    torch.testing.assert_close(given, named, rtol=0, atol=0)
    decoupled = TwoTowerLoss(Columns(), LABELS, "logistic/tail")(features, REPEATED)
    by_margin = TwoTowerLoss(Columns(), LABELS, "logistic/logit-adjusted")(features, REPEATED)
    torch.testing.assert_close(decoupled, by_margin, rtol=0, atol=0)


def test_a_hard_negative_whose_item_was_never_seen_is_left_out_by_tail_weights_only():
    embedded = columns(hard=1)
    ids = torch.stack([DIFFERENT, torch.full_like(DIFFERENT, -100)], 1)
    hard = [{"x": x} for x in embedded]
    tail = TwoTowerLoss(Columns(), LABELS, "tail")
    torch.testing.assert_close(tail(hard, ids), tail(hard[:2], DIFFERENT), rtol=0, atol=0)
    importance = TwoTowerLoss(Columns(), LABELS, "importance")
    torch.testing.assert_close(importance(hard, ids), importance(hard, DIFFERENT), rtol=0, atol=0)
    assert importance(hard, ids) > importance(hard[:2], DIFFERENT)


def test_items_that_were_never_seen_count_nowhere():
    embedded = columns()
    ids = DIFFERENT.clone()
    ids[4:] = -100
    got = TwoTowerLoss(Columns(), LABELS, "tail")([{"x": x} for x in embedded], ids)
    part = TwoTowerLoss(Columns(), LABELS, "tail")([{"x": x[:4]} for x in embedded], ids[:4])
    torch.testing.assert_close(got, part, rtol=1e-14, atol=0)


def test_a_batch_of_one_pair_has_loss_zero_or_its_hard_negative():
    embedded = columns(hard=1, size=1)
    features = [{"x": x} for x in embedded]
    ids = torch.tensor([[3, 1]])
    loss = TwoTowerLoss(Columns(), LABELS, "importance")
    assert loss(features[:2], ids[:, 0]) == 0
    wanted = written_out(embedded, ids, lambda *_: 0.0)
    torch.testing.assert_close(loss(features, ids), wanted, rtol=1e-13, atol=0)


def gradients(model, loss, data, seed=3):
    """Loss and gradients of one batch, as the trainer would see them."""
    model.zero_grad()
    ids = torch.tensor(data["label"])
    texts = [name for name in data.column_names if name != "label"]
    features = [model.preprocess(data[name][:]) for name in texts]
    torch.manual_seed(seed)
    value = loss(features, ids)
    (value * 0.5).backward()
    return value.detach(), [p.grad.clone() for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize("hard", [0, 1])
def test_cached_gradients_are_those_of_the_whole_batch(tmp_path, hard):
    model = text_model(tmp_path).double().train()
    data = pairs(20, hard=hard)
    labels = count_items(data, "item")
    data = with_item_ids(data, ["item", "negative_item_0"] if hard else "item", labels)
    whole, wanted = gradients(model, TwoTowerLoss(model, labels), data)
    for size in (6, 20, 64):
        cached = CachedTwoTowerLoss(model, labels, mini_batch_size=size)
        value, got = gradients(model, cached, data)
        assert abs(value - whole) <= 1e-12
        assert len(got) == len(wanted)
        for one, other in zip(got, wanted, strict=True):
            assert (one - other).abs().max() <= 1e-12


def test_cached_gradients_replay_dropout(tmp_path):
    # One part per column draws the same dropout as the whole batch, so both are equal.
    model = text_model(tmp_path, dropout=0.3).double().train()
    data = pairs(12)
    labels = count_items(data, "item")
    data = with_item_ids(data, "item", labels)
    whole, wanted = gradients(model, TwoTowerLoss(model, labels), data)
    other_noise, _ = gradients(model, TwoTowerLoss(model, labels), data, seed=4)
    value, got = gradients(model, CachedTwoTowerLoss(model, labels, mini_batch_size=12), data)
    assert other_noise != whole
    assert abs(value - whole) <= 1e-12
    for one, other in zip(got, wanted, strict=True):
        assert (one - other).abs().max() <= 1e-12


def test_matryoshka_wraps_both_losses(tmp_path):
    model = text_model(tmp_path).double().train()
    data = pairs(12)
    labels = count_items(data, "item")
    data = with_item_ids(data, "item", labels)
    plain = losses.MatryoshkaLoss(model, TwoTowerLoss(model, labels), [16, 8])
    cached = CachedTwoTowerLoss(model, labels, mini_batch_size=5)
    _, wanted = gradients(model, plain, data)
    _, got = gradients(model, losses.MatryoshkaLoss(model, cached, [16, 8]), data)
    for one, other in zip(got, wanted, strict=True):
        assert (one - other).abs().max() <= 1e-12


KINDS = [TwoTowerLoss, CachedTwoTowerLoss]


def of_one_rank(rank, folder):
    """Loss and gradients of both losses on one of two ranks, whose batches differ in size."""
    torch.set_num_threads(1)
    model = text_model(folder / f"model{rank}").double().train()
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2
    )
    data, labels = ready(24)
    mine = data.select(range(16) if rank == 0 else range(16, 24))
    # As the trainer wraps it: buffers that are sent between two passes would be changed in between.
    wrapped = nn.parallel.DistributedDataParallel(model, broadcast_buffers=False)
    for kind in KINDS:
        options = {"mini_batch_size": 5} if kind is CachedTwoTowerLoss else {}
        loss = kind(model, labels, gather_across_devices=True, **options)
        loss.model = wrapped
        torch.save(gradients(model, loss, mine), folder / f"{kind.__name__}{rank}.pt")
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
    os.environ |= {"LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    torch.save(trained_by_two(folder, data, labels, batch=4), folder / f"trained{rank}.pt")
    torch.distributed.destroy_process_group()


def trained_by_two(folder, data, labels, batch):
    """Weights that the trainer learns with the items of all processes as negatives."""

    def gathering(model):
        model.double()
        return TwoTowerLoss(model, labels, gather_across_devices=True)

    batches = {"per_device_train_batch_size": batch, "max_steps": 3, "max_grad_norm": 0.1}
    trainer, _ = trained(folder, gathering, data, model=folder / "shared", **batches)
    return trainer.model.state_dict()


def ready(size):
    data = pairs(size)
    labels = count_items(data, "item")
    return with_item_ids(data, "item", labels), labels


def test_two_processes_that_gather_have_the_gradients_of_one(tmp_path):
    text_model(tmp_path / "shared")
    torch.multiprocessing.spawn(of_one_rank, (tmp_path,), nprocs=2)
    model = text_model(tmp_path / "one").double().train()
    data, labels = ready(24)
    whole, wanted = gradients(model, TwoTowerLoss(model, labels), data)
    for kind in KINDS:
        results = [torch.load(tmp_path / f"{kind.__name__}{rank}.pt") for rank in range(2)]
        mean = sum(value for value, _ in results) / 2
        assert mean.item() == pytest.approx(whole.item(), rel=1e-12)
        for _, got in results:
            for one, other in zip(got, wanted, strict=True):
                assert (one - other).abs().max() <= 1e-12
    wanted = trained_by_two(tmp_path, data, labels, batch=8)
    for got in (torch.load(tmp_path / f"trained{rank}.pt") for rank in range(2)):
        for name, weight in wanted.items():
            assert (got[name] - weight).abs().max() <= 1e-10, name


def trained(folder, loss_of, data, evaluated=None, model=None, **arguments):
    model = text_model(folder / "model") if model is None else saved_text_model(model)
    arguments = SentenceTransformerTrainingArguments(
        output_dir=str(folder / "out"),
        learning_rate=3e-3,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
        logging_strategy="no",
        use_cpu=True,
        **({"num_train_epochs": 1, "per_device_train_batch_size": 8} | arguments),
    )
    loss = loss_of(model)
    trainer = SentenceTransformerTrainer(model, arguments, data, evaluated, loss=loss)
    return trainer, trainer.train()


@pytest.mark.parametrize("kind", KINDS)
def test_the_trainer_trains_with_it(tmp_path, kind):
    data = pairs(64)
    labels = count_items(data, "item")
    train = with_item_ids(data, "item", labels)
    test = with_item_ids(pairs(16, seed=1), "item", labels)
    trainer, result = trained(
        tmp_path, lambda model: kind(model, labels), train, test, num_train_epochs=8
    )
    before = trained(tmp_path / "b", lambda model: kind(model, labels), train, test, max_steps=1)
    assert result.training_loss < before[1].training_loss
    assert math.isfinite(trainer.evaluate()["eval_loss"])


def test_cached_and_whole_batches_train_the_same_weights(tmp_path):
    data = pairs(32)
    labels = count_items(data, "item")
    data = with_item_ids(data, "item", labels)
    weights = []
    for name, kind in (("a", TwoTowerLoss), ("b", CachedTwoTowerLoss)):
        trainer, _ = trained(
            tmp_path / name, lambda model, kind=kind: kind(model, labels), data,
            gradient_accumulation_steps=2,
        )  # fmt: skip
        weights.append(copy.deepcopy(trainer.model.state_dict()))
    for name, weight in weights[0].items():
        torch.testing.assert_close(weight, weights[1][name], rtol=1e-4, atol=1e-5)


def test_items_are_counted_and_become_the_label_column():
    data = Dataset.from_dict({"anchor": list("abc"), "positive": list("xyx"), "item": [7, 3, 7]})
    labels = count_items(data, "item")
    assert labels.names == [3, 7]
    assert labels.counts.tolist() == [1, 2]
    ready = with_item_ids(data, "item", labels)
    assert ready.column_names == ["anchor", "positive", "label"]
    assert ready["label"][:] == [1, 0, 1]
    # A stream, rows in another order, items that are new.
    stream = data.to_iterable_dataset()
    assert count_items(stream, "item").counts.tolist() == [1, 2]
    assert [row["label"] for row in with_item_ids(stream, "item", labels)] == [1, 0, 1]
    assert list(with_item_ids(stream, "item", labels).features) == ["anchor", "positive", "label"]
    assert [row["label"] for row in with_item_ids(stream, ["item"], labels)] == [[1], [0], [1]]
    assert with_item_ids(data.select([1, 0]), "item", labels)["label"][:] == [0, 1]
    new = Dataset.from_dict({"anchor": list("ab"), "item": [3, 8]})
    assert with_item_ids(new, "item", labels)["label"][:] == [0, -100]


def test_settings_are_in_the_config_dict():
    loss = TwoTowerLoss(Columns(), LABELS, "tail(0.5)", scale=10)
    assert loss.temperature == 0.1
    assert loss.get_config_dict() == {
        "weighting": "tail(0.5)",
        "scale": 10,
        "score": "cosine",
        "collisions": "target",
        "num_items": 10,
        "gather_across_devices": False,
    }


FEATURES = [{"x": x} for x in columns(hard=1)]


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: TwoTowerLoss(Columns(), LABELS)(FEATURES[:2], None), "no item ids"),
        (
            lambda: TwoTowerLoss(Columns(), LABELS)(FEATURES[:2], DIFFERENT + 9),
            "from 0 to 9, but got 14",
        ),
        (lambda: TwoTowerLoss(Columns(), LABELS)(FEATURES[:2], DIFFERENT[:3]), r"shape \[6\]"),
        (lambda: TwoTowerLoss(Columns(), LABELS)(FEATURES[:2], DIFFERENT / 2), "integer label ids"),
        (lambda: TwoTowerLoss(Columns(), LABELS)(FEATURES[:1], DIFFERENT), "two columns"),
        (
            lambda: TwoTowerLoss(Columns(), LABELS)(FEATURES, DIFFERENT),
            "ids of hard negatives",
        ),
        (lambda: TwoTowerLoss(Columns(), LABELS, "tial"), "tial"),
        (lambda: TwoTowerLoss(Columns(), LABELS, "uniform:tail"), "must be the name of a"),
        (lambda: TwoTowerLoss(Columns(), LABELS, scale=0), "`scale` must be above 0"),
        (lambda: TwoTowerLoss(Columns(), [3, 1]), "`labels` must be a Labels"),
        (lambda: count_items(pairs(4), "itm"), "Did you mean `item`"),
        (lambda: count_items({"train": pairs(4)}, "item"), "must be a datasets.Dataset"),
        (lambda: with_item_ids(pairs(4), "anchr", LABELS), "`anchr` is not a column"),
    ],
)
def test_bad_use_gets_one_sentence(call, sentence):
    with pytest.raises(HeadtailError, match=sentence):
        call()


def test_a_static_embedding_needs_no_cache(tmp_path):
    model = text_model(tmp_path)
    static = nn.Sequential(StaticEmbedding(model.tokenizer, embedding_dim=4))
    with pytest.raises(HeadtailError, match="Write `TwoTowerLoss"):
        CachedTwoTowerLoss(static, LABELS)


@pytest.mark.parametrize("weighting", ["arcface(0.3)/tail", "arcface(0.3)/logit-adjusted"])
def test_a_margin_on_the_score_is_kept(weighting: str) -> None:
    labels = Labels.zipf(20)
    loss = TwoTowerLoss(nn.Identity(), labels, weighting).loss
    assert loss.settings.score_margin == ArcFace(0.3)
    assert loss.temperature == 1 / 20
