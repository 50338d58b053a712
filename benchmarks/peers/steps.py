"""A whole training step on sparse features with headtail's `Trainer`, PyTorch and fbgemm; run by
`epoch.py`.

A step gathers a batch, sums weighted feature rows, applies dropout and the label head, and updates
both tables. The peers' batches were gathered and normalised in advance; headtail's gathering is
timed.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from peers.cells import MIB, Cell, Found, memory_mib, reset_peak, serve, times_of
from peers.heads import LR, fbgemm_table, full_softmax, sampled_loss
from torch import Tensor, nn

from headtail.data.bag import Bag, Picked
from headtail.data.batches import Batches
from headtail.data.points import DataSet
from headtail.data.synthetic import generate
from headtail.rows.optimizers import RowSGD
from headtail.training.config import Run
from headtail.training.trainer import Trainer

BATCHES = 16
MOMENTUM = 0.9
Step = Callable[[], object]


def run_of(cell: Cell, **more: object) -> Run:
    """The run of a cell: uniform negatives with importance weights, or full softmax."""
    optimiser = "sgd" if cell.optimiser == "momentum" else cell.optimiser
    sizes = {
        "dim": cell.dim,
        "batch": cell.batch,
        "negatives": cell.negatives,
        "validation": 0.0,
        "schedule": "constant",
    }
    return Run(
        **{
            "scheme": "uniform:importance",
            "optimiser": optimiser,
            "lr": LR,
            "precision": cell.dtype,
            **sizes,
            **more,
        }
    )  # pyright: ignore[reportArgumentType]


def headtail(cell: Cell, data: DataSet) -> Step:
    """The trainer's step: one CUDA graph on a GPU, eager on a CPU."""
    return headtail_step_of(cell, Trainer(run_of(cell), data, device=cell.device))


def headtail_step_of(cell: Cell, trainer: Trainer) -> Step:
    """The step of a given trainer."""
    if cell.optimiser == "momentum":
        trainer.optimiser = RowSGD(
            trainer.model.parameters(), lr=LR, momentum=MOMENTUM
        ).inside_backward(at_once=True)
    trainer.model.train()
    epochs = (trainer.step.order(epoch) for epoch in itertools.count())
    batches = itertools.chain.from_iterable(epochs)
    return lambda: trainer.step(next(batches))


def torch_step(cell: Cell, data: DataSet, sparse: bool) -> Step:
    """PyTorch: `embedding_bag`, then sampled softmax with sparse gradients or full softmax with
    dense ones.
    """
    tables = [_table(rows, cell) for rows in (data.train.num_features, cell.labels)]
    return torch_step_of(cell, data, sparse, tables)[0]


def torch_step_of(
    cell: Cell, data: DataSet, sparse: bool, tables: list[nn.Parameter]
) -> tuple[Step, torch.optim.Optimizer]:
    """The same with given tables of features and labels; and its optimiser."""
    features, labels = tables
    optimiser = _optimiser(tables, cell, sparse)
    batches = _gathered(cell, data)

    def loss_of(
        columns: Tensor, offsets: Tensor, values: Tensor, target: Tensor, ids: Tensor
    ) -> Tensor:
        hidden = F.embedding_bag(
            columns,
            features,
            offsets,
            mode="sum",
            per_sample_weights=values,
            include_last_offset=True,
            sparse=sparse,
        )
        hidden = F.dropout(hidden, 0.5)
        return (
            sampled_loss(hidden, labels, target, ids, sparse=True)
            if sparse
            else full_softmax(hidden, labels, target)
        )

    loss = torch.compile(loss_of) if cell.how == "compiled" else loss_of

    def step() -> None:
        optimiser.zero_grad()
        loss(
            *next(batches), torch.randint(cell.labels, (cell.negatives,), device=cell.device)
        ).backward()
        optimiser.step()

    return step, optimiser


def fbgemm_step(cell: Cell, data: DataSet) -> Step:
    """fbgemm: its backward updates both tables."""
    from fbgemm_gpu import split_table_batched_embeddings_ops_training as tbe  # pyright: ignore[reportMissingImports]
    from fbgemm_gpu.split_embedding_configs import EmbOptimType  # pyright: ignore[reportMissingImports]

    features = fbgemm_table(
        tbe, EmbOptimType, cell.optimiser, data.train.num_features, cell.dim, tbe.PoolingMode.SUM
    )
    labels = fbgemm_table(
        tbe, EmbOptimType, cell.optimiser, cell.labels, cell.dim, tbe.PoolingMode.NONE
    )
    batches = _gathered(cell, data)
    shift = math.log(cell.labels / cell.negatives)
    ends = torch.tensor([0, cell.batch + cell.negatives])

    def step() -> None:
        columns, offsets, values, target = next(batches)
        hidden = F.dropout(features(columns, offsets, per_sample_weights=values), 0.5)
        ids = torch.randint(cell.labels, (cell.negatives,))
        rows = labels(torch.cat([target, ids]), ends)
        negative = (hidden @ rows[cell.batch :].T + shift).masked_fill(
            ids == target[:, None], -torch.inf
        )
        logits = torch.cat([(hidden * rows[: cell.batch]).sum(1, keepdim=True), negative], 1)
        F.cross_entropy(logits, torch.zeros_like(target)).backward()

    return step


PEERS: dict[str, Callable[[Cell, DataSet], Step]] = {
    "headtail": headtail,
    "PyTorch, sampled, sparse=True": lambda cell, data: torch_step(cell, data, sparse=True),
    "PyTorch, full softmax": lambda cell, data: torch_step(cell, data, sparse=False),
    "fbgemm": fbgemm_step,
}


def measure(cell: Cell) -> Found:
    """Time and memory of a step."""
    cuda = cell.device == "cuda"
    torch.manual_seed(0)
    data = generate(cell.shape)
    torch.cuda.reset_peak_memory_stats() if cuda else reset_peak()
    loaded = torch.cuda.memory_allocated() / MIB if cuda else memory_mib("VmRSS")
    step = PEERS[cell.peer](cell, data)
    found = times_of(step, torch.cuda.synchronize if cuda else None, seconds=4.0)
    peak = (torch.cuda.max_memory_allocated() / MIB if cuda else memory_mib()) - loaded
    return {**found, "peak_mib": round(peak), "threads": torch.get_num_threads()}


def _gathered(cell: Cell, data: DataSet) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """Cycle through batches: columns, offsets, values (length 1 per point) and targets."""
    batches = Batches(data.train, cell.batch, seed=0)
    found = []
    for ids in itertools.islice(
        itertools.chain.from_iterable(batches.order(epoch) for epoch in itertools.count()), BATCHES
    ):
        bag = Picked(_bag(data), batches.point_of[ids]).gathered()
        lengths = bag.offsets.diff()
        norms = (
            torch.segment_reduce(bag.values.square(), "sum", offsets=bag.offsets, initial=0.0)
            .sqrt()
            .repeat_interleave(lengths)
        )
        tensors = (
            bag.columns.long(),
            bag.offsets,
            bag.values / norms,
            data.train.labels.values[ids].long(),
        )
        found.append(tuple(tensor.to(cell.device) for tensor in tensors))
    return itertools.cycle(found)


def _bag(data: DataSet) -> Bag:
    assert isinstance(data.train.features, Bag)
    return data.train.features


def _table(rows: int, cell: Cell) -> nn.Parameter:
    return nn.Parameter(
        nn.init.normal_(torch.empty(rows, cell.dim, device=cell.device), std=cell.dim**-0.5)
    )


def _optimiser(tables: list[nn.Parameter], cell: Cell, sparse: bool) -> torch.optim.Optimizer:
    fused = {} if sparse else {"fused": True}
    match cell.optimiser:
        case "adagrad":
            # there is none on CUDA
            return torch.optim.Adagrad(tables, lr=LR, **(fused if cell.device == "cpu" else {}))
        case "adam":
            return torch.optim.SparseAdam(tables, lr=LR)
        case "momentum":
            return torch.optim.SGD(tables, lr=LR, momentum=MOMENTUM, **fused)
        case _:
            return torch.optim.SGD(tables, lr=LR, **fused)


if __name__ == "__main__":
    serve(measure)
