"""Label vectors as a plain safetensors file, with a JSON file that says how to query them."""

from __future__ import annotations

from pathlib import Path

import torch

from headtail.answers.vectors import Vectors
from headtail.errors import check_kind
from headtail.files.atomic import new_folder
from headtail.files.tensors import save_tensors
from headtail.head import LabelHead

VECTORS_FILE = "vectors.safetensors"


def export(
    head: LabelHead,
    path: str | Path,
    *,
    post_hoc: float | None = None,
    correct_twice: bool = False,
) -> Path:
    """Write label vectors whose inner products with queries are the scores of `head.topk`.

    Bias, cosine, temperature and post-hoc adjustment are folded in. The folder gets
    `vectors.safetensors` with the tensor `vectors` `[L, dim]`, `query.json`, which says how a
    hidden state becomes a query (`normalise`: scale it to length 1; `append`: these numbers), and
    `labels.json`, the names of the labels where they have any.

    Args:
        head: a trained head.
        path: folder to make.
        post_hoc: τ of post-hoc logit adjustment, as in `head.topk`.
        correct_twice: as in `head.topk`.
    """
    check_kind("head", head, LabelHead, "model.head")
    vectors = Vectors(head.scored_table(post_hoc, correct_twice))
    with new_folder(Path(path)) as folder:
        rows = vectors.rows(torch.arange(len(vectors))).cpu()
        save_tensors(folder / VECTORS_FILE, {"vectors": rows}, vectors.recipe())
        vectors.describe(folder, {"vectors": VECTORS_FILE})
    return Path(path)
