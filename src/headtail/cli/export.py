"""`headtail export`: a trained model for other programs."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from headtail.cli.console import Console
from headtail.cli.progress import reading, show_notes
from headtail.cli.unused import refuse
from headtail.comparison.models import model_folder
from headtail.encoders import Model
from headtail.errors import check_number
from headtail.files.outputs import check_out_folder
from headtail.training.run_files import note_if_stopped
from headtail.training.saved_model import load_model

ONLY_FOR = {
    "index": (("faiss",), "only a faiss index can be of several kinds"),
    "search": (("faiss",), "only a faiss index is searched"),
    "k": (("torch",), "the number of labels is chosen when the index is asked"),
    "post_hoc": (("faiss", "safetensors", "torch"), "the encoder alone ranks no labels"),
}
"""What some options are for, and why they are for nothing else."""


@dataclass(frozen=True)
class Export:
    """Write the labels of a trained model as a search index, or the model as one program.

    Bias, cosine, temperature and post-hoc adjustment are folded in, so that the inner product of a
    query and a label vector is the label's score. Each folder has a query.json that says what goes
    in, and a labels.json with the names of the labels.
    """

    model: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Folder of a trained model, made by headtail train; or of a comparison, with --scheme."""
    to: Literal["faiss", "safetensors", "torch", "encoder"]
    """A faiss index of the labels (faiss), their vectors (safetensors), encoder and top-k as a
    program of torch.export (torch), or the encoder alone, which makes hidden states for an index
    (encoder).
    """
    out: Path
    """Folder to make."""
    index: str | None = None
    """What faiss builds: Flat, which is exact and the default, IVF1024,Flat, HNSW32, …"""
    search: str | None = None
    """How faiss searches, saved with the index: nprobe=16, efSearch=128."""
    k: int | None = None
    """Labels per point, of a program; 10 by default."""
    post_hoc: float | None = None
    """Move answers to rare labels: τ times log π is subtracted from each score, with π the share of
    the label in training. By default that of the model.
    """
    scheme: str | None = None
    """Which model of a comparison, for example within-batch:tail."""
    seed: int | None = None
    """Which seed of that scheme; by default the lowest."""

    def run(self) -> int:
        """Export, and print where it is."""
        for name, (targets, because) in ONLY_FOR.items():
            if getattr(self, name) is not None and self.to not in targets:
                refuse([f"--{name.replace('_', '-')}"], because)
        if self.post_hoc is not None:
            check_number("post_hoc", self.post_hoc, low=0)
        check_out_folder(self.out)
        folder = model_folder(self.model, self.scheme, self.seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about labels that are never drawn: training warned
            model, _, facts = load_model(folder)
        status = Console(stderr=True)
        show_notes(note_if_stopped(folder), Export, status)
        about = self._write(model, facts, status)
        Console().print(
            f"{len(model.head.weight):,} labels: {self.out}{about}", soft_wrap=True, markup=False
        )
        return 0

    def _write(self, model: Model, facts: dict[str, Any], status: Console) -> str:
        """Write the files, and return what else there is to print."""
        if self.to == "faiss":
            return self._write_index(model, status)
        with status.status(f"exporting to {self.to}"):
            if self.to == "safetensors":
                from headtail.integrations import safetensors

                safetensors.export(model.head, self.out, post_hoc=self.post_hoc)
            else:
                from headtail.integrations import torch_export

                k = 10 if self.k is None else self.k
                example = torch_export.example_for(model, facts)
                torch_export.export(
                    model,
                    self.out,
                    example,
                    None if self.to == "encoder" else k,
                    post_hoc=self.post_hoc,
                )
        return ""

    def _write_index(self, model: Model, status: Console) -> str:
        from headtail.integrations import faiss

        with reading(status) as progress:
            done = faiss.export(
                model.head,
                self.out,
                self.index or "Flat",
                search=self.search or "",
                post_hoc=self.post_hoc,
                progress=progress,
            )
        if done.advice is not None:
            show_notes([done.advice], Export, status)
        return f", recall@{done.k} {done.recall:.3f} ({done.asked})"
