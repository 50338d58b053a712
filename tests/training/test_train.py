"""Training: it learns, keeps its best weights, and reports when it diverges."""

from __future__ import annotations

import math
import threading
from dataclasses import replace

import pytest
import torch

from headtail.core.targets import Ragged
from headtail.data.bag import Bag
from headtail.data.points import DataSet, Points
from headtail.encoders import Bottleneck
from headtail.errors import HeadtailError
from headtail.evaluation.topk import top_labels
from headtail.training import checkpoint
from headtail.training.build_model import build_model, build_optimiser
from headtail.training.callbacks import Callback
from headtail.training.config import SettledRun
from headtail.training.held_out import split_validation
from headtail.training.saved_model import load_model
from headtail.training.trainer import Trained, Trainer

NUM_LABELS = 12
NUM_FEATURES = 30
SMALL = SettledRun(dim=8, batch=16, negatives=8, epochs=3, lr=0.1, validation=0.2, dropout=0.5)
RUNS = {
    "adagrad": replace(SMALL, scheme="within-batch:tail"),
    "adam with lazy decay": replace(
        SMALL, scheme="uniform:importance@4", optimiser="adam", lr=0.02, weight_decay=0.5
    ),
    "sgd, clipped": replace(
        SMALL,
        scheme="uniform(excluded):relative@4",
        optimiser="sgd",
        clip=1.0,
        feature_dropout=0.2,
        seed=3,
    ),
    "queue": replace(SMALL, scheme="queue(64):importance", schedule="cosine", stop_on="recall@10"),
    "part of a queue": replace(
        SMALL, scheme="mixture(queue,uniform):tail@6", weight_decay=0.1, validation=0.0
    ),
    "all labels": replace(
        SMALL, scheme="softmax", weight_decay=0.05, warmup=5, stop_on="precision@1"
    ),
    "whole points": replace(SMALL, scheme="uniform:tail@4", batching="points"),
    "by score, with lazy decay": replace(
        SMALL, scheme="model:tail@4", optimiser="adam", lr=0.02, weight_decay=0.5
    ),
    "nearest beside a queue": replace(SMALL, scheme="hard(2,queue(32)):constant@6"),
    "from a pool": replace(
        SMALL, scheme="resampled(16,frequency(0.5)):importance@4", batching="points"
    ),
}


def small_data(*, sparse: bool = True) -> DataSet:
    """Points with one to three labels, frequent and rare; each label shows in two features that no
    other has, and there is noise.
    """
    generator = torch.Generator().manual_seed(7)

    def points(n: int) -> Points:
        labels = []
        columns = []
        values = []
        for i in range(n):
            count = int(torch.randint(1, 4, (), generator=generator))
            own = torch.multinomial(
                1 / (torch.arange(NUM_LABELS) + 1.0), count, generator=generator
            ).tolist()
            own = sorted({*own, i} if i < NUM_LABELS else own)  # every label occurs
            noise = 24 + int(torch.randint(6, (), generator=generator))
            labels.append(own)
            columns.append([c for y in own for c in (2 * y, 2 * y + 1)] + [noise])
            values.append([1.0] * (2 * len(own)) + [0.5])
        offsets = torch.tensor([0, *map(len, columns)]).cumsum(0)
        flat = [torch.tensor([x for row in rows for x in row]) for rows in (columns, values)]
        bag = Bag(offsets, flat[0].int(), flat[1], NUM_FEATURES)
        return Points(bag if sparse else bag.to_dense(), Ragged.from_lists(labels), NUM_LABELS)

    return DataSet("small", points(100), points(40), digest=f"small {sparse}")


DATA = small_data()


def assert_same_model(one: Trained, other: Trained) -> None:
    for (name, weight), too in zip(
        one.model.named_parameters(), other.model.parameters(), strict=True
    ):
        assert torch.equal(weight, too), name
    assert one.state.curve == other.state.curve
    assert one.state.best_epoch == other.state.best_epoch


class Stop(Callback):
    """Stops the run after some steps."""

    def __init__(self, after: int) -> None:
        self.after = after
        self.event = threading.Event()

    def on_step(self, progress, loss):
        if progress.step >= self.after:
            self.event.set()

    def on_epoch(self, progress, metrics):
        self.on_step(progress, 0.0)


class Calls(Callback):
    """Remembers its calls."""

    def __init__(self) -> None:
        self.made = []

    def on_step(self, progress, loss):
        self.made.append(("step", progress, loss))

    def on_epoch(self, progress, metrics):
        self.made.append(("epoch", progress, metrics))

    def on_end(self, progress):
        self.made.append(("end", progress, None))


def test_randomness_used_between_making_a_trainer_and_training_changes_nothing():
    early = Trainer(SMALL, DATA)
    late = Trainer(SMALL, DATA)
    torch.rand(5)
    first = early.fit()
    torch.manual_seed(99)
    assert_same_model(first, late.fit())


def test_another_seed_gives_another_model():
    one, other = (Trainer(replace(SMALL, seed=seed), DATA).fit() for seed in (0, 1))
    assert not torch.equal(one.model.head.weight, other.model.head.weight)


def test_training_learns_from_the_features():
    trained = Trainer(replace(SMALL, epochs=40, scheme="uniform:importance@6"), DATA).fit()
    top = top_labels(trained.model, DATA.test, 1)[:, 0].tolist()
    offsets = DATA.test.labels.offsets.tolist()
    values = DATA.test.labels.values.tolist()
    hits = sum(label in values[offsets[i] : offsets[i + 1]] for i, label in enumerate(top))
    assert hits >= 36, "of 40"


@pytest.mark.parametrize("sparse", [True, False], ids=["sparse", "dense"])
@pytest.mark.parametrize("scheme", ["softmax", "contrastive/within-batch:tail"])
def test_a_saved_model_answers_as_the_trained_one(sparse, scheme, tmp_path):
    data = small_data(sparse=sparse)
    trained = Trainer(replace(SMALL, scheme=scheme, weight_decay=0.3), data, tmp_path).fit()
    model, run, facts = load_model(tmp_path)
    assert run == replace(SMALL, scheme=scheme, weight_decay=0.3)
    assert facts["data"] == data.digest
    assert torch.equal(top_labels(model, data.test, 5), top_labels(trained.model, data.test, 5))


def test_lazy_decay_reaches_the_encoder_s_rows_before_they_are_read():
    """With plain SGD, rows that are decayed late but before they are read train as rows that are
    decayed in every step.
    """
    run = replace(
        SMALL, scheme="uniform:importance@4", optimiser="sgd", weight_decay=1.0, dropout=0.0
    )
    trainer = Trainer(run, DATA)
    found = []
    for sparse in (True, False):
        torch.manual_seed(0)
        model = build_model(run, trainer.labels, NUM_FEATURES, sparse=sparse)
        optimiser = build_optimiser(run, model)
        for ids in trainer.batches.order(0):
            optimiser.zero_grad()
            torch.manual_seed(int(ids[0]))
            model(trainer.batches.take(ids[:2])).backward()
            optimiser.step()
        with torch.no_grad():
            hidden = model.encoder(DATA.test.features)
        optimiser.flush()
        assert isinstance(model.encoder, Bottleneck)
        found.append((hidden, model.encoder.weight.detach(), model.head.weight.detach()))
    for lazy, eager in zip(*found, strict=True):
        assert torch.allclose(lazy, eager, atol=1e-6)


class Script:
    """Validation values as written, and the weights they were measured on."""

    def __init__(self, values: list[float]) -> None:
        self.values = values
        self.seen = []

    def measure(self, model) -> float:
        self.seen.append(
            {name: weight.detach().clone() for name, weight in model.named_parameters()}
        )
        return self.values[len(self.seen) - 1]


@pytest.mark.parametrize("folder", [True, False], ids=["in a folder", "in memory"])
@pytest.mark.parametrize(
    ("stop_on", "values", "epochs", "best"),
    [
        ("implicit-loss", [3.0, 2.0, 2.5, 2.1, 1.0], 4, 2),
        ("recall@10", [0.1, 0.3, 0.2, 0.3, 0.9], 4, 2),
        ("implicit-loss", [3.0, 2.5, 2.7, 2.0, 1.9], 5, 5),
        ("implicit-loss", [math.nan, 2.0, math.nan, math.nan, 1.0], 4, 2),
    ],
    ids=["lower is better", "higher is better", "ever better", "no number"],
)
def test_training_stops_when_it_gets_no_better_and_returns_the_best_weights(
    folder, stop_on, values, epochs, best, tmp_path
):
    script = Script(values)
    run = replace(SMALL, epochs=5, patience=2, stop_on=stop_on, weight_decay=0.2)
    trainer = Trainer(run, DATA, tmp_path if folder else None)
    trainer.validation = script
    trained = trainer.fit()
    assert trained.state.epoch == epochs
    assert trained.state.best_epoch == best
    assert [
        value for _, metric, value in trained.state.curve if metric == stop_on
    ] == pytest.approx(values[:epochs], nan_ok=True)
    for name, weight in trained.model.named_parameters():
        assert torch.equal(weight, script.seen[best - 1][name])
        assert best == epochs or not torch.equal(weight, script.seen[-1][name])


def test_without_validation_the_last_weights_are_kept(tmp_path):
    run = replace(SMALL, validation=0.0, weight_decay=0.4)
    trained = Trainer(run, DATA, tmp_path).fit()
    assert trained.state.best_epoch == trained.state.epoch == 3
    assert {metric for _, metric, _ in trained.state.curve} == {"loss"}
    assert torch.equal(load_model(tmp_path)[0].head.weight, trained.model.head.weight)


def test_a_finished_run_is_not_trained_again(tmp_path):
    first = Trainer(SMALL, DATA, tmp_path).fit()
    calls = Calls()
    again = Trainer(SMALL, DATA, tmp_path, callbacks=[calls]).fit()
    assert [(name, progress.finished) for name, progress, _ in calls.made] == [("end", True)]
    assert_same_model(first, again)


def test_the_curve_s_losses_are_means_over_an_epoch_s_steps():
    losses = []
    trainer = Trainer(SMALL, DATA)
    trainer.model.register_forward_hook(lambda model, batch, loss: losses.append(loss.item()))
    trained = trainer.fit()
    steps = trained.steps_per_epoch
    curve = [value for _, metric, value in trained.state.curve if metric == "loss"]
    assert curve == pytest.approx(
        [sum(losses[i * steps : (i + 1) * steps]) / steps for i in range(3)], rel=1e-6
    )


def test_the_learning_rate_falls_over_all_epochs_together(monkeypatch):
    trainer = Trainer(replace(SMALL, patience=9), DATA)
    rates = []
    step = trainer.optimiser.advance
    monkeypatch.setattr(
        trainer.optimiser,
        "advance",
        lambda: rates.append(trainer.optimiser.param_groups[0]["lr"]) or step(),
    )
    trainer.fit()
    total = 3 * trainer.batches.steps
    assert rates == pytest.approx([0.1 * (1 - done / total) for done in range(total)])


def test_a_learning_rate_far_too_high_is_named_as_the_cause():
    run = replace(SMALL, scheme="uniform:importance@4", optimiser="sgd", lr=1e6)
    with pytest.raises(
        HeadtailError, match=r"diverged: the loss is .* Try a smaller `lr` than 1e\+06"
    ):
        Trainer(run, DATA).fit()


def test_other_settings_and_other_data_are_refused_and_what_is_there_is_left_alone(tmp_path):
    Trainer(SMALL, DATA, tmp_path).fit()
    before = (tmp_path / "checkpoint.safetensors").read_bytes()
    for run, data in ((replace(SMALL, lr=0.2), DATA), (SMALL, replace(DATA, digest="other"))):
        with pytest.raises(
            HeadtailError,
            match=r"checkpoint.safetensors` belongs to a run with other settings or other data",
        ):
            Trainer(run, data, tmp_path).fit()
    assert (tmp_path / "checkpoint.safetensors").read_bytes() == before


def test_what_is_no_checkpoint_or_model_of_ours_is_refused_with_a_sentence(tmp_path):
    Trainer(SMALL, DATA, tmp_path).fit()
    model = (tmp_path / "model.safetensors").read_bytes()
    path = tmp_path / "checkpoint.safetensors"
    (tmp_path / "checkpoint-before.safetensors").unlink()
    whole = path.read_bytes()
    (tmp_path / "model.safetensors").write_bytes(whole)
    with pytest.raises(HeadtailError, match="is not a trained model"):
        load_model(tmp_path)
    for content, fragment in (
        (model, "is not a checkpoint of a run"),
        (whole[:-100], "cannot be read as a checkpoint"),
    ):
        path.write_bytes(content)
        with pytest.raises(HeadtailError, match=fragment):
            Trainer(SMALL, DATA, tmp_path).fit()
    with pytest.raises(HeadtailError, match="holds no trained model"):
        load_model(tmp_path / "nowhere")


def test_held_out_points_are_the_same_for_all_and_are_not_trained_on():
    _, among, held_out = split_validation(DATA, 0.2)
    assert among is not None
    assert held_out is not None
    assert len(held_out) == 20
    assert len(among) == 80
    counts = torch.bincount(held_out.labels.values, minlength=NUM_LABELS)
    trained = Trainer(SMALL, DATA).labels.counts
    assert torch.equal(
        trained + counts, torch.bincount(DATA.train.labels.values, minlength=NUM_LABELS)
    )
    own = split_validation(replace(DATA, validation=DATA.test), 0.2)
    assert own.among is None
    assert own.held_out is not None
    assert len(own.held_out) == len(DATA.test)


def test_held_out_points_without_labels_are_not_validated_on():
    bare = replace(DATA.test, labels=Ragged.from_lists([[] for _ in range(len(DATA.test))]))
    for data in (replace(DATA, validation=bare), replace(DATA, train=bare)):
        assert split_validation(data, 0.2) == (data.train, None, None)


@pytest.mark.parametrize("name", ["softmax", "logit-adjusted", "contrastive"])
def test_an_all_label_loss_over_whole_points_is_the_loss_over_their_pairs(name):
    gradients = []
    for batching in ("points", "pairs"):
        run = replace(
            SMALL,
            scheme=name,
            batching=batching,
            batch=10**6,
            validation=0.0,
            dropout=0.0,
            clip=1e9,
        )
        trainer = Trainer(run, DATA)  # clipping: gradients are held
        loss = trainer.model(trainer.batches.take(next(trainer.batches.order(0))))
        parameters = list(trainer.model.parameters())
        gradients.append(
            [loss.detach(), *(grad.to_dense() for grad in torch.autograd.grad(loss, parameters))]
        )
    for by_points, by_pairs in zip(*gradients, strict=True):
        assert torch.allclose(by_points, by_pairs, atol=1e-6)


def test_whole_points_mask_all_their_labels_as_negatives():
    """With every label drawn once, against the slow sum over labels that a point does not have."""
    run = replace(
        SMALL,
        scheme=f"uniform(without-replacement):importance@{NUM_LABELS}",
        batching="points",
        validation=0.0,
        dropout=0.0,
    )
    trainer = Trainer(run, DATA)
    ids = next(trainer.batches.order(0))
    found = trainer.model(trainer.batches.take(ids))
    logits = trainer.model.head.logits(trainer.model.encoder(DATA.train.features.rows(ids)))
    offsets = DATA.train.labels.offsets.tolist()
    values = DATA.train.labels.values.tolist()
    losses = []
    for f, i in zip(logits.double().tolist(), ids.tolist(), strict=True):
        own = values[offsets[i] : offsets[i + 1]]
        negatives = [math.exp(f[y]) for y in range(NUM_LABELS) if y not in own]
        losses += [math.log(1 + sum(negatives) / math.exp(f[y])) for y in own]
    assert found.item() == pytest.approx(sum(losses) / len(losses), rel=1e-5)


def test_the_run_s_settings_are_in_its_files(tmp_path):
    Trainer(SMALL, DATA, tmp_path).fit()
    for name in ("checkpoint", "model"):
        facts = checkpoint.load(tmp_path / f"{name}.safetensors")[1]
        assert SettledRun(**facts["run"]) == SMALL
        assert facts["data"] == DATA.digest


def test_a_run_that_leaps_in_its_first_steps_is_seen_as_lost():
    with pytest.raises(HeadtailError, match="diverged"):
        Trainer(replace(SMALL, scheme="softmax", lr=1e4, epochs=3), DATA).fit()


def test_of_users_that_are_tested_later_one_label_is_held_out():
    users = replace(DATA, test=replace(DATA.test, seen=DATA.test.labels))
    train, among, held_out = split_validation(users, 0.5)
    assert among is None
    assert held_out is not None
    assert held_out.seen is not None
    assert held_out.labels.offsets.diff().eq(1).all()
    assert len(train) == len(DATA.train)
    assert train.num_pairs + len(held_out) == DATA.train.num_pairs
    # what is held out and what is kept of a user are what it had
    assert held_out.rows is not None
    for i, user in enumerate(held_out.rows.tolist()):
        before, kept = (
            part.labels.values[slice(*part.labels.offsets[user : user + 2])]
            for part in (DATA.train, train)
        )
        out = held_out.labels.values[i : i + 1]
        assert torch.equal(torch.cat([kept, out]).sort().values, before.sort().values)
        seen = held_out.seen
        assert torch.equal(seen.values[seen.offsets[i] : seen.offsets[i + 1]], kept)


def test_points_of_one_session_are_held_out_together():
    session = torch.arange(len(DATA.train)) // 7
    data = replace(DATA, train=replace(DATA.train, rows=session))
    _, among, held_out = split_validation(data, 0.3)
    assert among is not None
    assert held_out is not None
    assert held_out.rows is not None
    assert 24 <= len(held_out) <= 30
    assert len(among) + len(held_out) == len(DATA.train)
    assert not set(held_out.rows.tolist()) & set(session[among].tolist())


class Full(Bottleneck):
    """An encoder that runs out of GPU memory, when it is moved there or when it is called."""

    def __init__(self, where: str) -> None:
        super().__init__(NUM_FEATURES, SMALL.dim)
        self.where = where

    def _apply(self, *_, **__):
        return self.run_out() if self.where == "move" else self

    def forward(self, features):
        return self.run_out()

    def run_out(self):
        raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.19 GiB.")


@pytest.mark.parametrize(
    ("where", "what"), [("move", r"The model's tables \(0.0 GiB\)"), ("call", "A step")]
)
def test_a_full_gpu_is_reported_in_a_sentence(monkeypatch, where, what):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (2**30, 140 * 2**30))
    with pytest.raises(
        HeadtailError,
        match=f"^{what} ran out of GPU memory: 1.0 of 140 GiB are free. Run fewer at once",
    ):
        Trainer(SMALL, DATA, encoder=Full(where)).fit()


class Twice(torch.nn.Module):
    """An encoder of two modules, which share a table of features or have one each."""

    def __init__(self, shared: bool) -> None:
        super().__init__()
        self.left = Bottleneck(NUM_FEATURES, 8, sparse=True)
        self.right = Bottleneck(NUM_FEATURES, 8, sparse=True)
        if shared:
            self.right.weight = self.left.weight

    def forward(self, features):
        return self.left(features) + 2 * self.right(features)


def test_a_table_that_two_modules_share_is_trained_with_the_sum_of_both_gradients():
    run = replace(SMALL, scheme="uniform:importance@4", dropout=0.0)
    ends = []
    for inside in (True, False):
        torch.manual_seed(0)
        trainer = Trainer(run, DATA, encoder=Twice(shared=True))
        assert not trainer.optimiser.at_once
        trainer.optimiser.inside_backward(inside)
        ends.append(trainer.fit())
    for one, other in zip(*(end.model.parameters() for end in ends), strict=True):
        assert torch.allclose(one, other, atol=1e-5)


def test_tables_that_no_two_modules_share_are_updated_at_once():
    assert Trainer(SMALL, DATA, encoder=Twice(shared=False)).optimiser.at_once
    assert Trainer(SMALL, DATA).optimiser.at_once
    assert not Trainer(replace(SMALL, clip=1.0), DATA).optimiser.at_once


def test_the_head_of_a_run_knows_the_names_of_its_labels(tmp_path):
    names = [f"label {i}" for i in range(NUM_LABELS)]
    data = replace(DATA, label_names=names)
    trained = Trainer(replace(SMALL, epochs=1), data, tmp_path).fit()
    assert trained.model.head.labels.names == names
    assert load_model(tmp_path)[0].head.labels.names == names
