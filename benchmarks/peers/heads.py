"""A training step of the label head alone, with headtail and with other libraries on torch; run by
`head_step.py`.

A step takes hidden states and targets, and gives the loss, the gradient of the hidden states and an
updated label table. Sampled heads draw m labels uniformly with replacement, shared by the batch,
mask draws of the target, and use importance weights. Exact heads score all labels. Targets are
uniform over the labels, the hardest case for caches.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from peers.cells import MIB, Cell, Found, memory_mib, reset_peak, serve, times_of
from torch import Tensor, nn

BATCHES = 16
"""Number of different batches per cell."""
ON_GPU = 0.4
"""Seconds of timing on a GPU, where steps are fast and uniform."""
LR = 0.01
TINY = {"labels": 5000, "batch": 8, "negatives": 8, "dim": 8}

Step = Callable[[Tensor, Tensor], None]


class Made:
    """A step, and the bytes any implementation must hold: table, optimiser state, label vectors."""

    def __init__(self, step: Step, needed: Callable[[], int], version: str = "") -> None:
        self.step = step
        self.needed = needed
        self.version = version


def headtail(cell: Cell) -> Made:
    """headtail: a fused loss, rows updated during backward."""
    import headtail as ht

    labels = ht.Labels.from_counts(torch.ones(cell.labels, dtype=torch.int64))
    loss = ht.SampledSoftmaxLoss(ht.Uniform(labels, cell.negatives), ht.Importance())
    head = ht.LabelHead(labels, cell.dim, loss, sparse=True, device=cell.device, dtype=_dtype(cell))
    head.loss.to(cell.device)
    kind = {"adagrad": ht.RowAdagrad, "sgd": ht.RowSGD, "adam": ht.RowAdam}[cell.optimiser]
    optimiser = kind(head.parameters(), lr=LR).inside_backward(at_once=True)

    def step(hidden: Tensor, target: Tensor) -> None:
        ht.functional.backward(head(hidden, target, ignore_index=None))
        optimiser.step()

    vectors = [labels.counts, *loss.buffers()] if cell.device == "cpu" else []
    return Made(
        step,
        lambda: _bytes([head.weight, *_state(optimiser), *vectors]),
        f"headtail {ht.__version__}",
    )


def sampled(cell: Cell, sparse: bool) -> Made:
    """Sampled softmax in plain PyTorch, with `F.embedding`."""
    weight = _table(cell)
    optimiser = optimiser_of(weight, cell, sparse)
    loss = _maybe_compiled(sampled_loss, cell)

    def step(hidden: Tensor, target: Tensor) -> None:
        optimiser.zero_grad()
        ids = torch.randint(cell.labels, (cell.negatives,), device=cell.device)
        loss(hidden, weight, target, ids, sparse).backward()
        optimiser.step()

    return Made(step, lambda: _bytes([weight, *_state(optimiser)]))


def sampled_loss(
    hidden: Tensor, weight: Tensor, target: Tensor, ids: Tensor, sparse: bool
) -> Tensor:
    """Uniform negatives with importance weights."""
    positive = (hidden * F.embedding(target, weight, sparse=sparse)).sum(1, keepdim=True)
    negative = hidden @ F.embedding(ids, weight, sparse=sparse).T + math.log(len(weight) / len(ids))
    return _over(positive, negative, target, ids)


def _over(positive: Tensor, negative: Tensor, target: Tensor, ids: Tensor) -> Tensor:
    negative = negative.masked_fill(ids == target[:, None], -torch.inf)
    return F.cross_entropy(torch.cat([positive, negative], 1), torch.zeros_like(target))


def exact(cell: Cell, loss: Callable[[Tensor, Tensor, Tensor], Tensor], version: str = "") -> Made:
    """A head over all labels, with dense gradients."""
    weight = _table(cell)
    optimiser = optimiser_of(weight, cell, sparse=False)
    loss = _maybe_compiled(loss, cell)

    def step(hidden: Tensor, target: Tensor) -> None:
        optimiser.zero_grad()
        loss(hidden, weight, target).backward()
        optimiser.step()

    return Made(step, lambda: _bytes([weight, *_state(optimiser)]), version)


def full_softmax(hidden: Tensor, weight: Tensor, target: Tensor) -> Tensor:
    """All scores at once."""
    return F.cross_entropy(hidden @ weight.T, target)


def torch_fused(cell: Cell) -> Made:
    """`F.linear_cross_entropy`; in chunks where its documentation recommends them."""
    options = nn.LinearCrossEntropyOptions() if cell.batch >= cell.dim else None  # pyright: ignore[reportAttributeAccessIssue]
    return exact(cell, lambda h, w, y: F.linear_cross_entropy(h, w, y, options=options))  # pyright: ignore[reportAttributeAccessIssue]


def liger(cell: Cell) -> Made:
    """liger-kernel's fused linear cross-entropy."""
    from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss  # pyright: ignore[reportMissingImports]

    fused = LigerFusedLinearCrossEntropyLoss()
    return exact(cell, lambda h, w, y: fused(w, h, y), _version("liger-kernel"))


def cut(cell: Cell) -> Made:
    """Apple's cut cross-entropy."""
    from cut_cross_entropy import linear_cross_entropy  # pyright: ignore[reportMissingImports]

    return exact(cell, linear_cross_entropy, _version("cut-cross-entropy"))


def fbgemm(cell: Cell) -> Made:
    """fbgemm's table-batched embedding, with the update in its backward."""
    from fbgemm_gpu import split_table_batched_embeddings_ops_training as tbe  # pyright: ignore[reportMissingImports]
    from fbgemm_gpu.split_embedding_configs import EmbOptimType  # pyright: ignore[reportMissingImports]

    table = fbgemm_table(
        tbe, EmbOptimType, cell.optimiser, cell.labels, cell.dim, tbe.PoolingMode.NONE
    )
    offsets = torch.tensor([0, cell.batch + cell.negatives])
    shift = math.log(cell.labels / cell.negatives)

    def step(hidden: Tensor, target: Tensor) -> None:
        ids = torch.randint(cell.labels, (cell.negatives,))
        rows = table(torch.cat([target, ids]), offsets)
        positive = (hidden * rows[: cell.batch]).sum(1, keepdim=True)
        _over(positive, hidden @ rows[cell.batch :].T + shift, target, ids).backward()

    held = [
        *table.split_embedding_weights(),
        *(state for states in table.split_optimizer_states() for state in states),
    ]
    return Made(step, lambda: _bytes(held), _version("fbgemm-gpu-cpu"))


def fbgemm_table(
    tbe: Any, optimisers: Any, optimiser: str, rows: int, dim: int, pooling: Any
) -> Any:
    """A table in host memory with the optimiser fused into its backward."""
    kind = {
        "adagrad": optimisers.EXACT_ADAGRAD,
        "sgd": optimisers.EXACT_SGD,
        "adam": optimisers.ADAM,
    }[optimiser]
    spec = (rows, dim, tbe.EmbeddingLocation.HOST, tbe.ComputeDevice.CPU)
    table = tbe.SplitTableBatchedEmbeddingBagsCodegen(
        [spec], optimizer=kind, learning_rate=LR, pooling_mode=pooling
    )
    nn.init.normal_(table.split_embedding_weights()[0], std=dim**-0.5)
    return table


PEERS: dict[str, Callable[[Cell], Made]] = {
    "headtail": headtail,
    "PyTorch, sampled, sparse=True": lambda cell: sampled(cell, sparse=True),
    "PyTorch, sampled, dense gradients": lambda cell: sampled(cell, sparse=False),
    "PyTorch, full softmax": lambda cell: exact(cell, full_softmax),
    "F.linear_cross_entropy": torch_fused,
    "liger-kernel": liger,
    "cut-cross-entropy": cut,
    "fbgemm": fbgemm,
}


def measure(cell: Cell) -> Found:
    """Time and memory of one cell."""
    cuda = cell.device == "cuda"
    torch.manual_seed(0)
    if cell.how == "compiled":
        torch._dynamo.reset()
    elif not cuda:  # loads everything that is loaded once, which is not memory for labels
        tiny = Cell(**{**vars(cell), **TINY})
        _run(PEERS[cell.peer](tiny), tiny, seconds=0.0)
    loaded = memory_mib("VmRSS")
    if cuda:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        loaded = torch.cuda.memory_allocated() / MIB
    else:
        reset_peak()
    made = PEERS[cell.peer](cell)
    found = _run(made, cell)
    peak = torch.cuda.max_memory_allocated() / MIB if cuda else memory_mib()
    above = peak - loaded - made.needed() / MIB
    sizes = {
        "peak_mib": round(peak - loaded, 1),
        "needed_mib": round(made.needed() / MIB, 1),
        "above_mib": round(above, 1),
    }
    if cell.how == "compiled" and not cuda:
        sizes = {}  # the compiler's own memory would count
    return {**found, **sizes, "version": made.version, "threads": torch.get_num_threads()}


def _run(made: Made, cell: Cell, **options: Any) -> Found:
    torch.set_float32_matmul_precision("high" if cell.dtype == "tf32" else "highest")
    hidden = torch.randn(
        cell.batch, cell.dim, device=cell.device, dtype=_dtype(cell), requires_grad=True
    )
    targets = itertools.cycle(
        torch.randint(cell.labels, (BATCHES, cell.batch), device=cell.device).unbind()
    )

    def step() -> None:
        hidden.grad = None
        made.step(hidden, next(targets))

    if cell.how != "graphed":
        return times_of(
            step, *([torch.cuda.synchronize, ON_GPU] if cell.device == "cuda" else []), **options
        )
    from headtail.device.graphs import graph_of

    return times_of(graph_of(step, BATCHES).replay, torch.cuda.synchronize, ON_GPU, each=BATCHES)


def _dtype(cell: Cell) -> torch.dtype:
    """Type of hidden states and table; tf32 is a mode of float32 products."""
    return torch.float32 if cell.dtype == "tf32" else getattr(torch, cell.dtype)


def _table(cell: Cell) -> nn.Parameter:
    table = torch.empty(cell.labels, cell.dim, device=cell.device, dtype=_dtype(cell))
    return nn.Parameter(nn.init.normal_(table, std=cell.dim**-0.5))


def optimiser_of(weight: Tensor, cell: Cell, sparse: bool) -> torch.optim.Optimizer:
    """Torch's optimiser; `fused=True`, the fastest by its documentation, for dense gradients."""
    if sparse:
        kind = {
            "adagrad": torch.optim.Adagrad,
            "sgd": torch.optim.SGD,
            "adam": torch.optim.SparseAdam,
        }[cell.optimiser]
        return kind([weight], lr=LR)
    kind = {"adagrad": torch.optim.Adagrad, "sgd": torch.optim.SGD, "adam": torch.optim.Adam}[
        cell.optimiser
    ]
    return kind([weight], lr=LR, fused=not (cell.optimiser == "adagrad" and cell.device == "cuda"))


def _maybe_compiled(loss: Callable[..., Tensor], cell: Cell) -> Callable[..., Tensor]:
    return torch.compile(loss, dynamic=False) if cell.how == "compiled" else loss


def _state(optimiser: torch.optim.Optimizer) -> list[Tensor]:
    return [
        value
        for state in optimiser.state.values()
        for value in state.values()
        if isinstance(value, Tensor) and value.dim()
    ]


def _bytes(tensors: list[Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)


def _version(package: str) -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return f"{package} {version(package)}"
    except PackageNotFoundError:  # on PYTHONPATH, without its metadata
        return package


if __name__ == "__main__":
    serve(measure)
