"""A trainer on several ranks, which share the label table and every batch."""

from __future__ import annotations

import gc
import shutil
import tempfile
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from headtail import HeadtailError, Run, Trainer, load
from headtail.collectives.accord import Accord
from headtail.collectives.gather import gather
from headtail.core.labels import Labels
from headtail.core.sharded_labels import ShardedLabels
from headtail.core.targets import Ragged
from headtail.data.points import DataSet, Points
from headtail.data.slices import data_slices
from headtail.device import parts
from headtail.distributed import as_one, exact_in_blocks, table_file
from headtail.distributed.own_margin import lean_of_ranks, own_margin
from headtail.evaluation.dial import dial_of
from headtail.evaluation.measures import best_labels, measures_of
from headtail.implicit.implied import implied_margin_of, lean_of
from headtail.losses import SampledLoss
from headtail.training import pace
from headtail.training.callbacks import Callback, Progress
from headtail.training.engine import Engine
from headtail.training.interrupts import Stopped
from headtail.training.saved_model import load_model
from headtail.training.trainer import Trained
from tests.device.largest import LargestTensor

DATA = "synthetic:points=240,test=51,features=90,labels=37"
SHARDED = Engine(sharded=True)


@contextmanager
def _folder() -> Any:
    """One folder for all ranks."""
    names = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(names)
    try:
        yield Path(str(names[0]))
        dist.barrier()
    finally:
        if dist.get_rank() == 0:
            shutil.rmtree(str(names[0]), ignore_errors=True)


def _run(scheme: str, **settings: Any) -> Run:
    usual = {"dim": 6, "epochs": 2, "batch": 31, "negatives": 5, "lr": 0.1, "dropout": 0.0}
    return Run(scheme=scheme, **(usual | settings))


def _like_one_process(run: Run, data: DataSet) -> tuple[Trained, Trained]:
    """A run in this process alone, and on all ranks from the same first weights."""
    one = Trainer(run, data)
    all_ = Trainer(run, data, engine=SHARDED)
    with torch.no_grad():
        head = all_.model.head
        head.weight.copy_(one.model.head.weight[head.share.labels()])
        pairs = zip(one.model.encoder.parameters(), all_.model.encoder.parameters(), strict=True)
        for first, copy in pairs:
            copy.copy_(first)
    return one.fit(), all_.fit()


def _check_like_one_process(run: Run, data: DataSet | None = None) -> None:
    one, all_ = _like_one_process(run, load(DATA) if data is None else data)
    assert len(one.state.curve) == len(all_.state.curve) == 4
    for (epoch, metric, value), other in zip(one.state.curve, all_.state.curve, strict=True):
        assert other[:2] == (epoch, metric)
        assert other[2] == pytest.approx(value, rel=1e-5)
    own = all_.model.head.share.labels()
    torch.testing.assert_close(
        all_.model.head.weight, one.model.head.weight[own], rtol=0, atol=1e-4
    )
    encoders = one.model.encoder.parameters(), all_.model.encoder.parameters()
    for first, copy in zip(*encoders, strict=True):
        torch.testing.assert_close(copy, first, rtol=0, atol=1e-4)


def it_learns_what_one_process_learns_over_all_labels() -> None:
    _check_like_one_process(_run("logit-adjusted", weight_decay=0.01))


def it_learns_what_one_process_learns_within_batches() -> None:
    # Of the same batches, whichever rank an example is on; the norm is of all ranks' rows.
    _check_like_one_process(
        _run("within-batch:tail", clip=0.01, optimiser="sgd", lr=2.0, negatives=31)
    )


def it_measures_recall_as_one_process() -> None:
    _check_like_one_process(_run("softmax", stop_on="recall@10"))


def it_learns_from_sequences_what_one_process_learns() -> None:
    generator = torch.Generator().manual_seed(0)
    rows = [torch.randint(20, (6,), generator=generator).tolist() for _ in range(60)]
    with _folder() as folder:
        if dist.get_rank() == 0:
            for name, part in (("train", rows), ("test", rows[:20])):
                pq.write_table(pa.table({"items": part}), folder / f"{name}.parquet")
        dist.barrier()
        data = load(folder)
    # Keys of attention have a bias without a gradient, whose rounding errors Adagrad enlarges.
    sequences: dict[str, Any] = {"encoder": "sasrec", "heads": 1, "tied": False, "optimiser": "sgd"}
    _check_like_one_process(_run("logit-adjusted", **sequences), data)
    Trainer(_run("within-batch:tail", **sequences), data, engine=SHARDED).fit()
    with pytest.raises(HeadtailError, match="cannot be that of the encoder too"):
        Trainer(_run("softmax", encoder="gru"), data, engine=SHARDED)


def its_model_answers_in_one_process_as_on_all_ranks() -> None:
    data = load(DATA)
    slices = data_slices(data, "auto")
    with _folder() as folder:
        for scheme in ("uniform:importance", "queue:tail"):
            trained = Trainer(_run(scheme), data, folder / scheme[:5], engine=SHARDED).fit()
            top = best_labels(trained.model, data)
            dial = dial_of(trained.model, data, slices, trained.lean())
            dist.barrier()
            model, *_ = load_model(folder / scheme[:5])
            assert best_labels(model, data).equal(top)
            assert measures_of(top, data, slices) == measures_of(
                best_labels(model, data), data, slices
            )
            assert dial_of(model, data, slices) == dial
            assert (scheme[:5] != "queue") or model.head.loss.sampler._filled > 0


def it_learns_from_images_alike_on_all_ranks_and_resumes() -> None:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (6, 3, 8, 8), generator=generator, dtype=torch.uint8)
    labels = Ragged(torch.arange(40) % 6, torch.arange(41))
    noise = torch.randint(30, (40, 3, 8, 8), generator=generator, dtype=torch.uint8)
    points = Points((images[labels.values] // 2) + noise, labels, num_labels=6)
    data = DataSet("images", points, points)
    # Without validation, which would restore what rank 0 has saved.
    run = _run("uniform:tail", encoder="resnet20", negatives=3, batch=8, validation=0.0)
    with _folder() as folder:
        whole = Trainer(run, data, folder / "whole", engine=SHARDED).fit()
        for tensor in [*whole.model.encoder.parameters(), *whole.model.encoder.buffers()]:
            copies = whole.model.ranks.gather(tensor.detach())
            assert torch.equal(copies[0], copies[-1])
        model, *_ = load_model(folder / "whole")
        assert best_labels(model, data).equal(best_labels(whole.model, data))
        often = Engine(sharded=True, check_every=1, save_every=0.0)
        stops = _StopsAfter(3)
        event = stops.event if dist.get_rank() == 0 else threading.Event()
        options = {"callbacks": [stops], "stop": event, "engine": often}
        with pytest.raises(Stopped):
            Trainer(run, data, folder / "parts", **options).fit()
        parts = Trainer(run, data, folder / "parts", engine=SHARDED).fit()
        assert parts.state == whole.state
        assert all(map(torch.equal, _weights(parts), _weights(whole)))
        buffers = parts.model.encoder.buffers(), whole.model.encoder.buffers()
        assert all(map(torch.equal, *buffers))


def no_rank_holds_the_table_to_write_its_model_or_to_read_the_best() -> None:
    data = load("synthetic:points=4050,test=51,features=90,labels=6001")
    usual = table_file.BLOCK
    table_file.BLOCK = 2**12
    try:
        with _folder() as folder:
            trainer = Trainer(_run("queue:tail"), data, folder, engine=SHARDED)
            model = trainer.model
            table = model.head.weight.nbytes
            assert table > 40_000
            with LargestTensor() as largest:
                trainer.files.save_model(model)
            assert largest.bytes < table / 4, (largest.bytes, table)
            before = [parameter.detach().clone() for parameter in model.parameters()]
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.zero_()
            with LargestTensor() as largest:
                trainer.files.restore_best(model)
            assert largest.bytes < table / 4, (largest.bytes, table)
            assert all(map(torch.equal, before, model.parameters()))
    finally:
        table_file.BLOCK = usual


def no_rank_copies_its_table_to_find_weights_that_are_not_finite() -> None:
    data = load("synthetic:points=2700,test=51,features=90,labels=4001")
    usual = parts.PART
    parts.PART = 2**12
    try:
        with _folder() as folder:
            trainer = Trainer(_run("queue:tail"), data, folder, engine=SHARDED)
            table = trainer.model.head.weight
            # Written while training goes on, it is copied to host memory as a whole.
            trainer.files.save_checkpoint = lambda *_: None
            with LargestTensor() as largest:
                trainer._save()
            assert largest.bytes < table.nbytes / 4, (largest.bytes, table.nbytes)
            if dist.get_rank() == 1:
                with torch.no_grad():
                    table[-1, 0] = torch.nan
            with pytest.raises(HeadtailError, match="no longer a finite number"):
                trainer._save()
    finally:
        parts.PART = usual


def its_model_file_is_that_of_one_process_byte_for_byte() -> None:
    """For schemes whose ranks know the counts of their own labels, and for others."""
    data = load(DATA)
    for scheme in ("uniform:tail", "queue:tail", "logit-adjusted", "frequency:importance"):
        run = _run(scheme)
        with _folder() as folder:
            all_ = Trainer(run, data, folder / "all", engine=SHARDED)
            one = Trainer(run, data, folder / f"one-{dist.get_rank()}")
            weight = gather(all_.model.head.weight.detach())
            rows = all_.model.head.placement.rows(torch.arange(37))
            with torch.no_grad():
                one.model.head.weight.copy_(weight[rows])
                pairs = zip(
                    one.model.encoder.parameters(), all_.model.encoder.parameters(), strict=True
                )
                for first, copy in pairs:
                    first.copy_(copy)
            for trainer in (one, all_):
                trainer.files.save_model(trainer.model)
            dist.barrier()
            files = [t.folder / "model.safetensors" for t in (one, all_) if t.folder is not None]
            assert files[0].read_bytes() == files[1].read_bytes(), scheme


def ranks_know_the_counts_of_their_own_labels_alone() -> None:
    data = load(DATA)
    labels = Trainer(_run("uniform:tail"), data).labels
    whole = labels.counts.tolist()
    smoothing = labels.smoothing
    del labels
    for scheme in ("uniform:tail", "mixture(uniform,queue(9)):tail", "softmax+post-hoc"):
        trainer = Trainer(_run(scheme), data, engine=SHARDED)
        head: Any = trainer.model.head
        own = head.share.labels()
        assert isinstance(trainer.labels, ShardedLabels)
        assert head.labels.counts.tolist() == [whole[label] for label in own]
        assert head.labels.smoothing == smoothing
        gc.collect()
        held = [t for t in gc.get_objects() if type(t) is Tensor and len(t.shape) == 1]
        assert all(len(t) != 37 for t in held), "something of the size of all labels"
    assert isinstance(Trainer(_run("frequency:tail"), data, engine=SHARDED).labels, Labels)
    with pytest.raises(HeadtailError, match="would correct twice"):
        Trainer(_run("uniform:tail+post-hoc"), data, engine=SHARDED)


def ranks_find_the_lean_that_one_process_finds() -> None:
    data = load(DATA)
    schemes = ("softmax", "logit-adjusted", "within-batch:constant", "uniform:relative")
    for scheme in (*schemes, "mixture(uniform,within-batch):constant", "equalised"):
        one = Trainer(_run(scheme, negatives=8), data)
        all_ = Trainer(_run(scheme, negatives=8), data, engine=SHARDED)
        head = one.model.head
        loss: Any = head.loss
        if isinstance(loss, SampledLoss):
            loss = as_one(loss, dist.get_world_size())
        expected = lean_of(implied_margin_of(loss, batch_size=2), head.labels)
        assert lean_of_ranks(all_.model.head) == pytest.approx(expected, abs=1e-9), scheme  # pyright: ignore[reportArgumentType]


def the_implicit_loss_is_that_of_what_ranks_draw_together() -> None:
    data = load(DATA)
    for scheme in ("uniform:constant", "mixture(uniform,within-batch):relative", "queue:tail"):
        run = _run(scheme, negatives=9)
        one, all_ = Trainer(run, data), Trainer(run, data, engine=SHARDED)
        loss: Any = as_one(one.model.head.loss, dist.get_world_size())  # pyright: ignore[reportArgumentType]
        implied = implied_margin_of(loss, 31)
        margin = own_margin(all_.model.head, 31)  # pyright: ignore[reportArgumentType]
        own = all_.model.head.share.labels()
        values = [m.log_positive(own)[:, None] + m.log_negative(own) for m in (margin, implied)]
        torch.testing.assert_close(*values, rtol=1e-12, atol=1e-12)


def no_rank_copies_its_table_to_measure_the_implicit_loss() -> None:
    data = load("synthetic:points=2700,test=51,features=90,labels=4001")
    usual = exact_in_blocks.SCORES_AT_ONCE
    exact_in_blocks.SCORES_AT_ONCE = 2**10
    try:
        trainer = Trainer(_run("uniform:tail"), data, engine=SHARDED)
        trainer.model.eval()
        table = trainer.model.head.weight
        measured: Any = trainer.validation
        measured.validation.at_once = 4
        with LargestTensor() as largest:
            in_blocks = measured.measure(trainer.model)
        assert largest.bytes < table.nbytes / 4, (largest.bytes, table.nbytes)
    finally:
        exact_in_blocks.SCORES_AT_ONCE = usual
    assert measured.measure(trainer.model) == pytest.approx(in_blocks, rel=1e-6)


class _StopsAfter(Callback):
    """Asks for a stop on one rank only."""

    def __init__(self, step: int) -> None:
        self.event = threading.Event()
        self.step = step

    def on_step(self, progress: Progress, loss: float) -> None:
        if progress.step >= self.step:
            self.event.set()


def _weights(trained: Trained) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in trained.model.parameters()]


def a_stopped_run_goes_on_bit_for_bit() -> None:
    data = load(DATA)
    run = _run("queue:tail", dropout=0.3, weight_decay=0.01)
    often = Engine(sharded=True, check_every=1, save_every=0.0)
    with _folder() as folder:
        whole = Trainer(run, data, folder / "whole", engine=SHARDED).fit()
        for step in (3, 17):
            stops = _StopsAfter(step)
            event = stops.event if dist.get_rank() == 0 else threading.Event()
            trainer = Trainer(
                run, data, folder / "parts", engine=often, callbacks=[stops], stop=event
            )
            with pytest.raises(Stopped):
                trainer.fit()
            assert trainer.progress.step < 2 * trainer.batches.steps
        parts = Trainer(run, data, folder / "parts", engine=SHARDED).fit()
        assert parts.state == whole.state
        assert all(map(torch.equal, _weights(parts), _weights(whole)))


class _SetAfter(threading.Event):
    """An event that sets itself when it has been looked at so often: once in every step."""

    def __init__(self, looks: float) -> None:
        super().__init__()
        self.looks = looks

    def is_set(self) -> bool:
        self.looks -= 1
        return self.looks < 0


def ranks_meet_now_and_then_and_stop_after_the_same_step() -> None:
    data = load(DATA)
    run = _run("queue:tail", dropout=0.3, weight_decay=0.01)
    seldom = Engine(sharded=True, check_every=1000, check_seconds=1e9)
    usual = pace.NOTICED_AFTER
    with _folder() as folder:
        whole = Trainer(run, data, folder / "whole", engine=SHARDED).fit()
        try:
            # Never because of the time, and after every step.
            for name, wait, looks, stopped in (("end", 1e9, 3, None), ("step", 0.0, 4, 5)):
                pace.NOTICED_AFTER = wait
                event = _SetAfter(looks if dist.get_rank() == 1 % dist.get_world_size() else 1e9)
                trainer = Trainer(run, data, folder / name, engine=seldom, stop=event)
                with _meetings() as meetings, pytest.raises(Stopped):
                    trainer.fit()
                steps = trainer.batches.steps
                assert trainer.state.step == (stopped or steps)
                # After the first two steps, the last one, and for weights that are not finite.
                assert len(meetings) == (stopped or 3) + 1, meetings
                parts = Trainer(run, data, folder / name, engine=SHARDED).fit()
                assert parts.state == whole.state
                assert all(map(torch.equal, _weights(parts), _weights(whole)))
        finally:
            pace.NOTICED_AFTER = usual


@contextmanager
def _meetings() -> Any:
    """The messages that decisions take meanwhile."""
    usual = Accord.highest
    meetings: list[tuple[int, ...]] = []

    def counted(accord: Accord, *numbers: int) -> tuple[int, ...]:
        meetings.append(numbers)
        return usual(accord, *numbers)

    Accord.highest = counted
    try:
        yield meetings
    finally:
        Accord.highest = usual


def a_run_of_one_process_is_not_continued_by_ranks() -> None:
    data = load(DATA)
    with _folder() as folder:
        if dist.get_rank() == 0:
            Trainer(_run("softmax"), data, folder / "one").fit()
        dist.barrier()
        with pytest.raises(HeadtailError, match="holds a run of one process"):
            Trainer(_run("softmax"), data, folder / "one", engine=SHARDED).fit()
        Trainer(_run("softmax"), data, folder / "all", engine=SHARDED).fit()
        dist.barrier()
        with pytest.raises(HeadtailError, match="ranks share the label table"):
            Trainer(_run("softmax"), data, folder / "all").fit(hold=False)


def other_settings_are_refused_on_every_rank() -> None:
    data = load(DATA)
    with _folder() as folder:
        Trainer(_run("softmax"), data, folder, engine=SHARDED).fit()
        with pytest.raises(HeadtailError, match="other settings or other data"):
            Trainer(_run("softmax", epochs=3), data, folder, engine=SHARDED).fit()


def what_ranks_cannot_share_is_refused() -> None:
    data = load(DATA)
    with pytest.raises(HeadtailError, match="cannot draw for a table that ranks share"):
        Trainer(_run("hard:constant"), data, engine=SHARDED)
    with pytest.raises(HeadtailError, match="Use fewer ranks, or a larger"):
        Trainer(_run("softmax", batch=1), data, engine=SHARDED)
