"""A trained model as one file of `torch.export`: features in, best labels out."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.export import Dim

from headtail.answers.vectors import write_description
from headtail.data.bag import Bag
from headtail.data.points import Features
from headtail.encoders import Bottleneck, Model, SequenceEncoder
from headtail.encoders.sequence import last_states
from headtail.errors import HeadtailError, check_kind
from headtail.files.atomic import new_folder
from headtail.rows.rounding import widened

MODEL_FILE = "model.pt2"


def export(
    model: Model,
    path: str | Path,
    features: Features,
    k: int | None = 10,
    *,
    post_hoc: float | None = None,
    correct_twice: bool = False,
) -> Path:
    """Write encoder, head and top-k as one program, for batches of any size.

    The folder gets `model.pt2`: `torch.export.load(…).module()` is a function from the inputs that
    `query.json` lists to (values, indices), both `[batch, k]`. `labels.json` holds the names of the
    labels where they have any. headtail is not needed to run it.

    Args:
        model: a trained model.
        path: folder to make.
        features: an example of what the encoder takes, two points or more: a `Bag`, or a tensor.
        k: labels per point; None for the encoder alone, which returns the hidden states `[batch,
            d]` that an index is asked with.
        post_hoc: τ of post-hoc logit adjustment, as in `head.topk`.
        correct_twice: as in `head.topk`.
    """
    check_kind("model", model, Model, "Model(encoder, head)")
    head = model.eval().head
    best = nn.Identity()
    outputs = ["hidden"]
    if k is not None:
        best = head.exported(k, post_hoc=post_hoc, correct_twice=correct_twice)
        outputs = ["values", "indices"]
    served = _served(model, best, features)
    with new_folder(Path(path)) as folder:
        _save(served, folder / MODEL_FILE)
        inputs = {
            name: _described(value, sizes)
            for (name, value), sizes in zip(served.example.items(), served.sizes, strict=True)
        }
        facts = {"model": MODEL_FILE, "inputs": inputs, "outputs": outputs, "k": k}
        write_description(folder, facts, None if k is None else head.labels)
    return Path(path)


def example_for(model: Model, facts: dict[str, Any]) -> Features:
    """Two points as the encoder of a trained run takes them.

    Args:
        model: of the run.
        facts: about the run, as `load_model` returns them.
    """
    encoder = model.encoder
    if facts.get("picture") is not None:
        return torch.zeros(2, 3, *facts["picture"], dtype=torch.uint8)
    if isinstance(encoder, SequenceEncoder):
        return torch.zeros(2, encoder.length, dtype=torch.int64)
    if facts.get("features") == "dense":
        return torch.zeros(2, facts["num_features"])
    columns = torch.zeros(2, dtype=torch.int32)
    return Bag(torch.arange(3), columns, torch.ones(2), facts["num_features"])


class _Served(NamedTuple):
    """What is exported: a module, an example of its inputs, and which of their sizes vary."""

    module: nn.Module
    example: dict[str, Tensor]
    sizes: tuple[dict[int, Any], ...]


@torch.no_grad()  # a graph that switches gradients off by itself could not be saved
def _save(served: _Served, path: Path) -> None:
    example = tuple(served.example.values())
    with warnings.catch_warnings():
        # about weights in the layout that convolutions like, and the lists of weights in `nn.GRU`
        warnings.simplefilter("ignore", UserWarning)
        program = torch.export.export(served.module, example, dynamic_shapes=served.sizes)
        torch.export.save(program, path)


def _served(model: Model, best: nn.Module, features: Features) -> _Served:
    batch = Dim("batch")
    if isinstance(features, Tensor | Bag) and len(features) < 2:
        raise HeadtailError("`features` must hold two points or more, as an example of a batch.")
    if isinstance(features, Tensor):
        name = "items" if isinstance(model.encoder, SequenceEncoder) else "features"
        return _Served(_OfTensor(model, best), {name: features}, ({0: batch},))
    encoder = model.encoder
    if not isinstance(features, Bag) or not isinstance(encoder, Bottleneck):
        raise HeadtailError(
            f"`features` is a {type(features).__name__}, which {type(encoder).__name__} cannot be "
            "exported with. Pass a tensor, or a `Bag` for a `Bottleneck`."
        )
    varying = {0: batch, 1: Dim("width")}
    return _Served(
        _OfBag(encoder, model.head.weight.dtype, best), _padded(features), (varying, varying)
    )


class _OfTensor(nn.Module):
    """An encoder that takes a tensor: dense features, images, or items in order."""

    def __init__(self, model: Model, best: nn.Module) -> None:
        super().__init__()
        self.encoder = model.encoder
        self.dtype = model.head.weight.dtype
        self.best = best

    def forward(self, features: Tensor) -> Any:
        """What is best, for hidden states as `Model.encode` computes them."""
        hidden = self.encoder(features)
        if isinstance(self.encoder, SequenceEncoder):
            hidden = last_states(hidden, features)
        return self.best(hidden.to(self.dtype))


class _OfBag(nn.Module):
    """`Bottleneck` on sparse features that are padded to the same number per point."""

    weight: Tensor
    bias: Tensor

    def __init__(self, encoder: Bottleneck, dtype: torch.dtype, best: nn.Module) -> None:
        super().__init__()
        self.register_buffer("weight", widened(encoder.weight.detach()))
        self.register_buffer("bias", encoder.bias.detach())
        self.dtype = dtype
        self.normalise = encoder.normalise
        self.best = best

    def forward(self, columns: Int64[Tensor, "n w"], values: Float[Tensor, "n w"]) -> Any:
        """What is best; a feature with the value 0 counts nowhere."""
        if self.normalise:
            length = torch.linalg.vector_norm(values, dim=1, keepdim=True)
            values = values / length.clamp(min=torch.finfo(torch.float32).tiny)
        hidden = F.embedding_bag(columns, self.weight, mode="sum", per_sample_weights=values)
        return self.best((hidden + self.bias).to(self.dtype))


def _padded(bag: Bag) -> dict[str, Tensor]:
    """Rows of a bag as matrices of columns and values, with the value 0 behind their end."""
    row = torch.arange(len(bag)).repeat_interleave(bag.offsets.diff())
    place = torch.arange(len(row)) - bag.offsets[row]
    shape = (len(bag), max(2, int(bag.offsets.diff().max())))
    columns = torch.zeros(shape, dtype=torch.int64)
    values = torch.zeros(shape)
    columns[row, place] = bag.columns.long()
    values[row, place] = bag.values
    return {"columns": columns, "values": values}


def _described(value: Tensor, sizes: dict[int, Any]) -> dict[str, Any]:
    """Type and shape of an input, with names for the sizes that vary."""
    shape = [sizes[axis].__name__ if axis in sizes else n for axis, n in enumerate(value.shape)]
    return {"dtype": str(value.dtype).removeprefix("torch."), "shape": shape}
