"""Runs on images: they learn, resume bit for bit, are loaded from disk, and follow the recipes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from headtail.cli.recipe import with_recipe
from headtail.comparison.compare import run_grid
from headtail.comparison.grid import cells
from headtail.core.labels import Labels
from headtail.core.targets import Ragged
from headtail.data.batches import Batches
from headtail.data.image_files import ImageFiles
from headtail.data.points import DataSet, Points
from headtail.encoders import Bottleneck, ResNet
from headtail.errors import HeadtailError
from headtail.evaluation.topk import top_labels
from headtail.rows.optimizers import DenseSGD, RowAdagrad, RowSGD
from headtail.training import checkpoint
from headtail.training.build_model import build_encoder, build_model
from headtail.training.captured import CapturedStep
from headtail.training.config import SettledRun, Training
from headtail.training.engine import Engine
from headtail.training.interrupts import Stopped
from headtail.training.recipes import cifar, imagenet_lt, inaturalist
from headtail.training.resident import Resident, resident_size
from headtail.training.saved_model import load_model
from headtail.training.trainer import Trainer
from tests.training.test_train import DATA as ROWS
from tests.training.test_train import SMALL as ROWS_RUN
from tests.training.test_train import Stop, assert_same_model

LABELS = 4
RUN = replace(
    SettledRun(**vars(cifar()), scheme="within-batch:tail"),
    encoder="resnet20",
    batch=16,
    negatives=8,
    epochs=2,
    lr=0.05,
    weight_decay=1e-3,
)
EVERY_STEP = Engine(check_every=1)
on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")


class Files(ImageFiles):
    """Images that are decoded one by one, like files; all randomness follows from (seed, id)."""

    size = 8

    def __init__(self, images: Tensor, asked: list[tuple]) -> None:
        self.images = images
        self.asked = asked

    def __len__(self) -> int:
        return len(self.images)

    def rows(self, ids: Tensor) -> Files:
        return Files(self.images[ids], self.asked)

    def decoded(self, ids: Tensor, *, train: bool, seed: int) -> Tensor:
        noise = [
            torch.randint(
                20, (3, 8, 8), generator=torch.Generator().manual_seed(seed % 1000 * 1000 + i)
            )
            for i in ids.tolist()
        ]
        return self.images[ids] + (torch.stack(noise).byte() if train else 0)

    def stream(
        self, batches: Iterable[Tensor], *, train: bool, seed: int, workers: int
    ) -> Iterator[Tensor]:
        self.asked.append((train, seed, workers))
        return (self.decoded(ids, train=train, seed=seed) for ids in batches)


def image_data(*, files: bool = False) -> DataSet:
    """Frequent and rare labels, each with its own colour and place."""
    generator = torch.Generator().manual_seed(5)

    def points(n: int) -> Points:
        label = torch.multinomial(
            1 / (torch.arange(LABELS) + 1.0), n, replacement=True, generator=generator
        )
        label[:LABELS] = torch.arange(LABELS)
        images = torch.randint(80, (n, 3, 8, 8), generator=generator)
        for i, y in enumerate(label.tolist()):
            images[i, y % 3, :, 4 * (y // 3) : 4 * (y // 3) + 4] += 120
        features = Files(images.byte(), []) if files else images.byte()
        return Points(features, Ragged(label, torch.arange(n + 1)), LABELS)

    return DataSet("coloured", points(70), points(40), digest=f"coloured {files}")


DATA = image_data()


def accuracy(model, points: Points) -> float:
    return float((top_labels(model, points, 1)[:, 0] == points.labels.values).float().mean())


@pytest.mark.parametrize(
    "scheme", ["within-batch:tail", "softmax", "contrastive/uniform:importance"]
)
def test_a_network_learns_colours(scheme):
    trained = Trainer(
        replace(RUN, scheme=scheme, epochs=6, augment=False, drops=(0.7,)), DATA
    ).fit()
    losses = [value for _, name, value in trained.state.curve if name == "loss"]
    assert losses[-1] < losses[0]
    assert accuracy(trained.model, DATA.test) > 0.8


@pytest.mark.parametrize("files", [False, True], ids=["resident", "files"])
def test_an_image_run_stopped_after_any_step_continues_bit_for_bit(files, tmp_path):
    data = image_data(files=files)
    whole = Trainer(RUN, data, tmp_path / "whole").fit()
    for after in (1, 3, 6):
        stop = Stop(after)
        with pytest.raises(Stopped):
            Trainer(
                RUN, data, tmp_path / "parts", engine=EVERY_STEP, callbacks=stop, stop=stop.event
            ).fit()
        torch.rand(3)  # randomness used elsewhere
    parts = Trainer(RUN, data, tmp_path / "parts", engine=EVERY_STEP).fit()
    assert_same_model(whole, parts)
    for one, other in zip(whole.model.buffers(), parts.model.buffers(), strict=True):
        assert torch.equal(one, other)
    saved = [
        checkpoint.load(tmp_path / name / "checkpoint.safetensors")[0]
        for name in ("whole", "parts")
    ]
    assert any(name.endswith("momentum_buffer") for name in saved[0])
    assert any(name.endswith("running_var") for name in saved[0])
    assert all(torch.equal(tensor, saved[1][name]) for name, tensor in saved[0].items())


def test_a_trained_network_comes_back_from_disk_with_all_that_it_measured(tmp_path):
    trained = Trainer(RUN, DATA, tmp_path).fit()
    model, run, facts = load_model(tmp_path)
    assert run == RUN
    assert facts["picture"] == [8, 8]
    assert isinstance(model.encoder, ResNet)
    assert torch.equal(model.encoder.prepare.mean, trained.model.encoder.prepare.mean)
    assert model.encoder.prepare.mean.max() < 120  # not where it starts
    assert torch.equal(top_labels(model, DATA.test, 3), top_labels(trained.model, DATA.test, 3))


def test_evaluation_in_blocks_and_at_once_are_the_same(monkeypatch):
    model = Trainer(RUN, DATA).model.eval()
    whole = top_labels(model, DATA.test, 2)
    monkeypatch.setattr("headtail.evaluation.topk.IMAGE_NUMBERS_AT_ONCE", 7 * 3 * 64)
    sizes = []
    plain = model.encoder.forward
    model.encoder.forward = lambda images: sizes.append(len(images)) or plain(images)
    assert torch.equal(top_labels(model, DATA.test, 2), whole)
    assert sizes == [7, 7, 7, 7, 7, 5]


def test_a_network_can_be_stopped_by_held_out_images():
    trained = Trainer(replace(RUN, validation=0.3, stop_on="precision@1"), DATA).fit()
    assert [name for _, name, _ in trained.state.curve].count("precision@1") == 2
    trained = Trainer(replace(RUN, validation=0.3), DATA).fit()
    assert [name for _, name, _ in trained.state.curve].count("implicit-loss") == 2


def test_files_are_decoded_in_the_epoch_s_order_with_the_epoch_s_seed_and_augmented_once():
    data = image_data(files=True)
    trainer = Trainer(RUN, data)
    seen = []
    trainer.model.encoder.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    trainer.fit()
    asked = data.train.features.asked  # pyright: ignore[reportAttributeAccessIssue]
    assert asked == [(True, epoch, torch.get_num_threads()) for epoch in range(RUN.epochs)]
    steps = [
        (trainer.batches.point_of[ids], epoch)
        for epoch in range(RUN.epochs)
        for ids in trainer.batches.order(epoch)
    ]
    expected = [
        data.train.features.decoded(points, train=True, seed=epoch) for points, epoch in steps
    ]  # pyright: ignore
    assert all(torch.equal(one, other) for one, other in zip(seen, expected, strict=True))
    assert not trainer.model.encoder.prepare.augment
    plain = Trainer(replace(RUN, augment=False), data)
    plain.fit()
    assert not asked[-1][0]


def test_images_need_a_network_and_rows_of_numbers_the_bottleneck():
    assert isinstance(build_encoder(SettledRun(), 30, None, sparse=False), Bottleneck)
    assert [
        build_encoder(SettledRun(), 0, (size, size), sparse=False).depth
        for size in (32, 64, 65, 224)
    ] == [56, 56, 50, 50]
    with pytest.raises(
        HeadtailError,
        match="`encoder='bag'` takes rows of numbers, but the features are images",
    ):
        Trainer(replace(RUN, encoder="bag", precision="float32"), DATA)
    with pytest.raises(
        HeadtailError, match="`encoder='resnet20'` takes images, but the features are rows"
    ):
        Trainer(RUN, ROWS)


def test_the_head_of_a_network_is_dense_and_as_wide_as_the_network():
    model = build_model(RUN, Labels.zipf(10), 3072, image_size=(32, 32))
    assert model.head.weight.shape == (10, 64)
    assert not model.head.sparse


class Grey(torch.nn.Module):
    """A user's own encoder."""

    def __init__(self) -> None:
        super().__init__()
        # An attribute `dim` of such an encoder means nothing to headtail.
        self.linear = torch.nn.Linear(64, 8)
        self.dim = 2

    def forward(self, images: Tensor) -> Tensor:
        return self.linear(images.float().mean(1).flatten(1) / 255)


def test_a_user_s_own_encoder_takes_images():
    run = replace(RUN, dim=8, precision="float32")
    trained = Trainer(run, DATA, encoder=Grey()).fit()
    assert trained.model.head.weight.shape == (LABELS, 8)
    with pytest.raises(HeadtailError, match="headtail's own encoders, but `encoder` is another"):
        Trainer(replace(run, precision="bfloat16"), DATA, encoder=Grey())


def test_sgd_is_torch_s_own_for_networks_and_row_wise_for_tables():
    trainer = Trainer(RUN, DATA)
    assert isinstance(trainer.optimiser, DenseSGD)
    assert trainer.optimiser.defaults["momentum"] == 0.9
    rows = Trainer(replace(ROWS_RUN, optimiser="sgd", momentum=0.5), ROWS).optimiser
    assert isinstance(rows, RowSGD)
    assert rows.defaults["momentum"] == 0.5
    assert isinstance(
        Trainer(replace(RUN, optimiser="adagrad", momentum=0.0), DATA).optimiser, RowAdagrad
    )


def test_weight_decay_is_coupled_and_passes_through_momentum():
    weight = torch.nn.Parameter(torch.tensor([2.0]))
    optimiser = DenseSGD([weight], lr=0.1, momentum=0.9, weight_decay=0.5)
    expected = 2.0
    velocity = 0.0
    for _ in range(3):
        weight.grad = torch.ones(1)
        optimiser.advance()
        velocity = 0.9 * velocity + 1.0 + 0.5 * expected
        expected -= 0.1 * velocity
    assert weight.item() == pytest.approx(expected)


def test_resident_images_stay_bytes():
    batches = Batches(DATA.train, 16, 0)
    resident = Resident(batches, torch.device("cpu"), dense_below=4096)
    assert resident.dense is not None
    assert resident.dense.dtype == torch.uint8
    assert resident_size(DATA.train, False, 4096).features == resident.dense.numel()


def test_the_recipes_are_the_paper_s():
    assert cifar().learning_rate(159, 256) == pytest.approx(0.1)
    assert cifar().learning_rate(160, 256) == pytest.approx(0.01)
    assert cifar().learning_rate(180, 256) == pytest.approx(0.001)
    for steps in (84, 85, 197):  # the drops fall on the first step of an epoch
        assert cifar().learning_rate(160 * steps - 1, 256 * steps) == pytest.approx(0.1)
        assert cifar().learning_rate(160 * steps, 256 * steps) == pytest.approx(0.01)
    assert imagenet_lt().learning_rate(0, 90) == pytest.approx(0.4)
    assert imagenet_lt().learning_rate(45, 90) == pytest.approx(0.2)
    for recipe in (cifar(), imagenet_lt(), inaturalist()):
        assert (recipe.optimiser, recipe.momentum, recipe.validation, recipe.dropout) == (
            "sgd",
            0.9,
            0.0,
            0.0,
        )


def test_explicit_options_take_precedence_over_the_recipe_even_where_it_is_the_default():
    default = Training()
    typed = [
        "compare",
        "DATA",
        "--recipe",
        "cifar",
        "--batch=256",
        "--no-augment",
        "--weight_decay",
        "0.0",
    ]
    found = with_recipe("cifar", replace(default, augment=False, batch=256), typed)
    assert (found.batch, found.augment, found.weight_decay) == (256, False, 0.0)
    assert (found.epochs, found.lr, found.encoder) == (256, 0.1, "resnet56")
    assert (
        with_recipe("cifar", replace(default, schedule="cosine"), ["--schedule", "cosine"]).drops
        == ()
    )
    assert with_recipe("cifar", default, ["--optimiser", "adagrad"]).momentum == 0.0
    assert (
        with_recipe("cifar", replace(default, momentum=0.5), ["--momentum", "0.5"]).momentum == 0.5
    )
    assert with_recipe(None, default, []) is default
    with pytest.raises(HeadtailError, match="`momentum` is for sgd"):
        with_recipe(None, replace(default, momentum=0.5), ["--momentum", "0.5"])


def test_a_comparison_on_images_runs_to_its_report(tmp_path):
    training = replace(cifar(), encoder="resnet20", epochs=2, batch=32, negatives=8)
    grid = cells(training, ("within-batch:tail", "softmax"), 1, DATA, tmp_path)
    found = run_grid(grid, DATA, tmp_path, slices="count")
    assert not found.failures
    tested = {
        row.scheme for row in found.rows if row.split == "test" and row.metric == "balanced-error"
    }
    assert {"within-batch:tail", "softmax"} <= tested


@pytest.mark.cuda
@on_gpu
@pytest.mark.parametrize("scheme", ["softmax", "uniform(without-replacement):tail@4"])
def test_a_captured_image_step_is_the_step_of_a_cpu(scheme, monkeypatch):
    # convolutions in all digits, as on a CPU
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    run = replace(
        RUN, scheme=scheme, augment=False, precision="float32", epochs=1, lr=0.01, drops=(0.5,)
    )
    here = Trainer(run, DATA)
    there = Trainer(run, DATA, device="cuda")
    assert isinstance(there.step, CapturedStep)
    for one, other in zip(
        here.model.state_dict().values(), there.model.state_dict().values(), strict=True
    ):
        assert torch.equal(one, other.cpu())  # the trial steps are undone, running means too
    found = [[value for *_, value in trainer.fit().state.curve] for trainer in (here, there)]
    assert found[0] == pytest.approx(found[1], rel=2e-3)


@pytest.mark.cuda
@on_gpu
@pytest.mark.parametrize("files", [False, True], ids=["resident", "files"])
def test_an_image_run_in_bfloat16_learns_and_resumes_on_a_gpu(files, tmp_path):
    data = image_data(files=files)
    run = replace(RUN, epochs=6, augment=False, drops=(0.7,))
    trained = Trainer(run, data, device="cuda").fit()
    assert accuracy(trained.model, DATA.test) > 0.8
    stop = Stop(5)
    with pytest.raises(Stopped):
        Trainer(
            run, data, tmp_path, device="cuda", engine=EVERY_STEP, callbacks=stop, stop=stop.event
        ).fit()
    resumed = Trainer(run, data, tmp_path, device="cuda", engine=EVERY_STEP).fit()
    losses = [[value for *_, value in one.state.curve] for one in (trained, resumed)]
    assert losses[0] == pytest.approx(losses[1], rel=0.05)
