"""Train a head, export it to a faiss index, and serve top-k from a process without headtail."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import faiss
import numpy as np


def build(folder: Path) -> None:
    """Train on points around a centre for each label, then write the index."""
    import torch

    import headtail as ht
    from headtail.integrations.faiss import export

    names = [f"product {i}" for i in range(2000)]
    labels = ht.Labels.from_counts(torch.arange(4000, 2000, -1), names=names)
    loss = ht.scheme("uniform:importance@256", labels, score="cosine", temperature=0.1)
    head = ht.LabelHead(labels, dim=32, loss=loss, bias=True, sparse=True)
    tables = ht.RowAdam(head.parameters(), lr=0.02)
    torch.manual_seed(0)
    centres = torch.randn(2000, 32)
    for _ in range(150):
        target = torch.randint(2000, (512,))
        head(centres[target] + 0.3 * torch.randn(512, 32), target).backward()
        tables.step()
        tables.zero_grad()
    for index, search in (("Flat", ""), ("IVF32,Flat", "nprobe=8")):
        done = export(
            head, folder / index, index, search=search, post_hoc=0.5, queries=centres[:500]
        )
        print(f"{index} {search}: recall@{done.k} {done.recall:.3f}")
    np.save(folder / "hidden.npy", centres[:3].numpy())


def serve(folder: Path, hidden: np.ndarray, k: int) -> None:
    """What a server needs: the index, how to make a query, and the names."""
    index = faiss.read_index(str(folder / "index.faiss"))
    recipe = json.loads((folder / "query.json").read_text())
    names = json.loads((folder / "labels.json").read_text())
    if recipe["normalise"]:
        hidden = hidden / np.linalg.norm(hidden, axis=1, keepdims=True)
    tail = np.tile(np.float32(recipe["append"]), (len(hidden), 1))
    scores, labels = index.search(np.hstack([hidden, tail]), k)
    for values, best in zip(scores, labels, strict=True):
        print(", ".join(f"{names[y]} ({f:.1f})" for f, y in zip(values, best, strict=True)))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        serve(Path(sys.argv[1]) / "IVF32,Flat", np.load(Path(sys.argv[1]) / "hidden.npy"), k=3)
        assert "torch" not in sys.modules
    else:
        with tempfile.TemporaryDirectory() as folder:
            build(Path(folder))
            sys.stdout.flush()
            subprocess.run([sys.executable, __file__, folder], check=True)
