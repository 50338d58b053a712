"""Sparse heads in Lightning: clipping, accumulation, averages, resuming, precision, processes."""

from __future__ import annotations

import math
import os
import socket

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import EMAWeightAveraging, ModelCheckpoint
from torch.utils.data import DataLoader, Subset

from headtail import HeadtailError, RowAdagrad, SplitOptimizer
from headtail.integrations.lightning import SparseHeads
from tests.integrations.tiny_lightning import Classifier, loader, trainer, weights

pytestmark = pytest.mark.filterwarnings("ignore")


def fitted(folder, module, *callbacks, batches=None, ckpt_path=None, **options):
    torch.manual_seed(5)
    loop = trainer(folder, SparseHeads(), *callbacks, **options)
    loop.fit(module, batches or loader(), ckpt_path=ckpt_path)
    return weights(module)


def by_hand(module, clip=None, accumulate=1, epochs=2):
    """The plain loop that a Lightning run with these settings is."""
    torch.manual_seed(5)
    module.double().train()
    optimizer = module.configure_optimizers()
    for _ in range(epochs):
        for index, batch in enumerate(loader()):
            (module.training_step(batch, index) / accumulate).backward()
            if (index + 1) % accumulate == 0:
                if clip is not None:
                    clip(list(module.parameters()))
                optimizer.step()
                optimizer.zero_grad()
        module.head.flush()
    return weights(module)


def assert_same(one, other, tolerance=0.0):
    assert one.keys() == other.keys()
    for name, weight in one.items():
        assert (weight - other[name]).abs().max() <= tolerance, name


CLIPS = {
    "norm": lambda parameters: torch.nn.utils.clip_grad_norm_(parameters, 0.1),
    "value": lambda parameters: torch.nn.utils.clip_grad_value_(parameters, 0.01),
}
VALUES = {"norm": 0.1, "value": 0.01}


@pytest.mark.parametrize("kind", CLIPS)
@pytest.mark.parametrize("sparse", [True, False])
def test_clipping_is_that_of_a_dense_table(tmp_path, kind, sparse):
    # Repeated labels in a batch make several entries of one row.
    name = "within-batch:tail"
    got = fitted(
        tmp_path,
        Classifier(name, sparse=sparse),
        gradient_clip_val=VALUES[kind],
        gradient_clip_algorithm=kind,
    )
    wanted = by_hand(Classifier(name, sparse=False), CLIPS[kind])
    assert_same(got, wanted, 1e-12)
    unclipped = by_hand(Classifier(name, sparse=False))
    assert (unclipped["head.weight"] - wanted["head.weight"]).abs().max() > 0.01


def test_a_module_that_clips_by_itself_may(tmp_path):
    class Own(Classifier):
        def configure_gradient_clipping(self, optimizer, *_, **__):
            self.clip_gradients(optimizer, 0.1, "norm")

    got = fitted(tmp_path, Own("within-batch:tail"))
    assert_same(got, by_hand(Classifier("within-batch:tail", sparse=False), CLIPS["norm"]), 1e-12)


def test_a_head_trains_bit_for_bit_as_in_a_plain_loop(tmp_path):
    module = Classifier(weight_decay=0.1)
    got = fitted(tmp_path, module)
    reference = Classifier(weight_decay=0.1)
    assert_same(got, by_hand(reference))
    assert module.losses == reference.losses


def test_gradients_of_several_batches_accumulate(tmp_path):
    got = fitted(tmp_path, Classifier("within-batch:tail"), accumulate_grad_batches=3)
    wanted = by_hand(Classifier("within-batch:tail", sparse=False), accumulate=3)
    assert_same(got, wanted, 1e-12)


def test_without_the_callback_clipping_fails(tmp_path):
    loop = trainer(tmp_path, gradient_clip_val=0.1)
    with pytest.raises((NotImplementedError, RuntimeError)):
        loop.fit(Classifier(), loader())


def test_training_resumes_bit_for_bit(tmp_path):
    options = {"weight_decay": 0.1}
    # Lightning loads a checkpoint before it makes a module "64-true".
    batches = loader(shuffle=True, dtype=torch.float32)
    shuffled = {"batches": batches, "gradient_clip_val": 0.5, "precision": "32-true"}
    whole = Classifier(**options)
    wanted = fitted(tmp_path, whole, max_epochs=4, **shuffled)
    keep = ModelCheckpoint(tmp_path, filename="{epoch}")
    saving = {"enable_checkpointing": True}
    fitted(tmp_path, Classifier(**options), keep, max_epochs=2, **saving, **shuffled)
    resumed = Classifier(**options, seed=3)
    path = str(tmp_path / "epoch=1.ckpt")
    got = fitted(tmp_path, resumed, max_epochs=4, ckpt_path=path, **shuffled)
    assert_same(got, wanted)
    assert resumed.losses == whole.losses[12:]


class HandAverage(L.Callback):
    """An exponential average of weights that have all their decay, step by step."""

    def __init__(self, decay: float) -> None:
        self.decay = decay
        self.average: dict[str, torch.Tensor] = {}

    def on_train_batch_end(self, trainer, pl_module, *_):
        pl_module.head.flush()
        for name, weight in pl_module.named_parameters():
            if name not in self.average:
                self.average[name] = weight.detach().clone()
            else:
                self.average[name].lerp_(weight.detach(), 1 - self.decay)


@pytest.mark.parametrize("first", [True, False])
def test_an_average_of_weights_sees_all_weight_decay(tmp_path, first):
    hand = HandAverage(0.9)
    fitted(tmp_path, Classifier("within-batch:tail", weight_decay=0.3), hand)
    # Lightning copies the module before it makes it "64-true".
    module = Classifier("within-batch:tail", weight_decay=0.3).double()
    ema = EMAWeightAveraging(decay=0.9)
    torch.manual_seed(5)
    order = [SparseHeads(), ema] if first else [ema, SparseHeads()]
    trainer(tmp_path, *order).fit(module, loader(), loader())
    for name, weight in module.named_parameters():
        assert (weight - hand.average[name]).abs().max() <= 1e-12
    module.head.flush()  # nothing is left to decay in the average
    for name, weight in module.named_parameters():
        assert (weight - hand.average[name]).abs().max() <= 1e-12


class WithItems(Classifier):
    """Reads one row of a sparse embedding in every step."""

    def __init__(self) -> None:
        super().__init__()
        self.items = torch.nn.Embedding(3, 6, sparse=True)

    def training_step(self, batch, batch_idx):
        features, target = batch
        return super().training_step((features + self.items(target * 0), target), batch_idx)

    def configure_optimizers(self):
        tables = [*self.head.parameters(), self.items.weight]
        rows = RowAdagrad(tables, lr=0.1, weight_decay=0.5)
        return SplitOptimizer(rows, torch.optim.AdamW(self.encoder.parameters(), lr=0.01))


def test_sparse_embeddings_have_their_weight_decay_too(tmp_path):
    module = WithItems()
    before = module.items.weight[2].detach().double()
    fitted(tmp_path, module)
    torch.testing.assert_close(module.items.weight[2].detach(), before * 0.95**12)


def test_validation_does_not_change_training(tmp_path):
    module = Classifier("within-batch:tail", weight_decay=0.3)
    torch.manual_seed(5)
    trainer(tmp_path, SparseHeads()).fit(module, loader(), loader())
    got = weights(module)
    assert_same(got, fitted(tmp_path, Classifier("within-batch:tail", weight_decay=0.3)), 1e-12)
    assert module.best.indices.shape == (8, 3)


def test_an_average_resumes_too(tmp_path):
    batches = loader(shuffle=True, dtype=torch.float32)

    def run(folder, epochs, path=None, seed=0):
        module = Classifier(weight_decay=0.3, seed=seed)
        keep = ModelCheckpoint(folder, filename="{epoch}")
        return fitted(
            folder,
            module,
            EMAWeightAveraging(decay=0.9),
            keep,
            batches=batches,
            precision="32-true",
            max_epochs=epochs,
            ckpt_path=path,
            enable_checkpointing=True,
        )

    wanted = run(tmp_path / "whole", 3)
    run(tmp_path / "part", 2)
    got = run(tmp_path / "part", 3, str(tmp_path / "part" / "epoch=1.ckpt"), seed=2)
    assert_same(got, wanted)


def test_bfloat16_autocast_trains(tmp_path):
    module = Classifier("within-batch:tail")
    batches = loader(dtype=torch.float32)
    fitted(tmp_path, module, batches=batches, precision="bf16-mixed", gradient_clip_val=1.0)
    assert all(math.isfinite(loss) for loss in module.losses)
    assert module.head.weight.dtype == torch.float32
    plain = Classifier("within-batch:tail")
    fitted(tmp_path, plain, batches=batches, precision="32-true", gradient_clip_val=1.0)
    # 8 bits of mantissa: 2^-8 of scores of a few units.
    assert max(abs(a - b) for a, b in zip(module.losses, plain.losses, strict=True)) < 0.1


def test_inside_backward_is_clipped_too(tmp_path):
    class Inside(Classifier):
        def configure_optimizers(self):
            split = super().configure_optimizers()
            split.optimizers[0].inside_backward()
            return split

    got = fitted(tmp_path, Inside("within-batch:tail"), gradient_clip_val=0.1)
    assert_same(got, by_hand(Classifier("within-batch:tail", sparse=False), CLIPS["norm"]), 1e-12)


def test_an_optimiser_that_does_not_know_sparse_rows_is_refused(tmp_path):
    class Plain(Classifier):
        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters())

    with pytest.raises(HeadtailError, match="combine both with `SplitOptimizer`"):
        fitted(tmp_path, Plain())
    Plain.configure_optimizers = lambda self: SplitOptimizer(
        RowAdagrad(self.head.parameters(), lr=0.1),
        torch.optim.AdamW(self.encoder.parameters()),
    )
    fitted(tmp_path, Plain())


def test_strategies_that_shard_are_refused(tmp_path, monkeypatch):
    loop = trainer(tmp_path)
    monkeypatch.setattr(type(loop), "world_size", 2)
    with pytest.raises(HeadtailError, match='Write `Trainer\\(strategy="ddp"\\)`'):
        SparseHeads().setup(loop, Classifier(), "fit")


def test_a_module_without_a_head_is_refused(tmp_path):
    module = Classifier()
    del module.head
    with pytest.raises(HeadtailError, match="Make it in `__init__`"):
        fitted(tmp_path, module)


def test_an_average_over_the_tables_of_a_sampler_is_refused(tmp_path):
    module = Classifier("frequency(0.5):importance@8")
    with pytest.raises(HeadtailError, match="use_buffers=False"):
        fitted(tmp_path, module, EMAWeightAveraging())
    before = [buffer.clone() for buffer in module.buffers()]
    fitted(tmp_path, module, EMAWeightAveraging(use_buffers=False))
    assert before
    for buffer, was in zip(module.buffers(), before, strict=True):
        assert torch.equal(buffer, was)


JOINT = {"gradient_clip_val": 0.1, "accumulate_grad_batches": 2}


def of_one_rank(rank, folder, port):
    """Runs of one of two ranks: one that a single process can repeat, and one that resumes."""
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ |= {"TORCHELASTIC_RUN_ID": "test", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0"}
    two = {"strategy": "ddp", "devices": 2}
    module = Classifier(joint=True, seed=rank)  # ranks start with the tables of rank 0
    # Every other row, in their order: Lightning's own sampler would shuffle them.
    rows = Subset(loader(ignored=9).dataset, range(rank, 48, 2))
    own = {"batches": DataLoader(rows, 8), "use_distributed_sampler": False}
    fitted(folder, module, **own, **JOINT, **two)
    torch.save(weights(module), folder / f"joint{rank}.pt")

    module = Classifier(weight_decay=0.1)
    two |= {"batches": loader(shuffle=True, dtype=torch.float32), "precision": "32-true"}
    fitted(folder, module, EMAWeightAveraging(decay=0.9), max_epochs=3, **two)
    torch.save((weights(module), module.losses), folder / f"whole{rank}.pt")
    keep = ModelCheckpoint(folder, filename="{epoch}")
    saving = {"enable_checkpointing": True, "max_epochs": 2}
    ema = EMAWeightAveraging(decay=0.9)
    fitted(folder, Classifier(weight_decay=0.1), ema, keep, **saving, **two)
    module = Classifier(weight_decay=0.1, seed=4)
    path = str(folder / "epoch=1.ckpt")
    fitted(folder, module, EMAWeightAveraging(decay=0.9), max_epochs=3, ckpt_path=path, **two)
    torch.save((weights(module), module.losses), folder / f"resumed{rank}.pt")
    torch.distributed.destroy_process_group()


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torch.multiprocessing.spawn(of_one_rank, (folder, port), nprocs=2)
    return lambda name: [torch.load(folder / f"{name}{rank}.pt") for rank in range(2)]


def test_two_processes_train_what_one_trains(two_ranks, tmp_path):
    module = Classifier("within-batch:tail")
    wanted = fitted(tmp_path, module, batches=loader(batch=16, ignored=9), **JOINT)
    for got in two_ranks("joint"):
        assert_same(got, wanted, 1e-12)


def test_two_processes_resume_bit_for_bit_with_negatives_of_their_own(two_ranks):
    whole = two_ranks("whole")
    for (got, losses), (wanted, all_losses) in zip(two_ranks("resumed"), whole, strict=True):
        assert_same(got, wanted)
        assert losses == all_losses[6:]
    assert whole[0][1] != whole[1][1]
    assert_same(whole[0][0], whole[1][0])
