"""Train on several processes, as torchrun would start them, and save what each rank has learnt."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from tests.integrations.test_transformers import (
    DECAYED,
    classifier,
    language_model,
    norms,
    sequences,
    texts,
    trained,
)

IGNORED = (0, 1, 2, 5, 9, 17, 18)


def unequal() -> list[dict]:
    """Texts, of which ranks ignore different numbers."""
    data = texts()
    for i in IGNORED:
        data[i]["labels"] = -100
    return data


def learn(folder: Path, ranks: int) -> dict:
    """Weights after the same steps with as many examples per step, however many ranks there are."""
    settings = {"max_steps": 2, "max_grad_norm": 0.1}
    learnt = {}
    for name, sparse in (("sparse", True), ("dense", False)):
        for parts in (1, 2):
            model = classifier(sparse=sparse)
            trainer = trained(
                model,
                folder,
                unequal(),
                per_device_train_batch_size=8 // parts // ranks,
                gradient_accumulation_steps=parts,
                **settings,
            )
            learnt[f"{name} in {parts}"] = model.state_dict(), norms(trainer)
    model = language_model(tied=True)
    trainer = trained(
        model, folder, sequences(), per_device_train_batch_size=4 // ranks, **settings
    )
    learnt["language model"] = model.state_dict(), norms(trainer)
    return learnt


def resume(folder: Path) -> dict:
    """A run that resumes, and one that was not stopped, with random negatives and pending decay."""
    settings = {"max_steps": 6, "train_sampling_strategy": "random", "save_steps": 3}
    whole = classifier("frequency:tail@8", dropout=0.1)
    trained(whole, folder, table=DECAYED, save_strategy="steps", **settings)
    resumed = classifier("frequency:tail@8", dropout=0.1)
    trained(resumed, folder, table=DECAYED, resume=str(folder / "checkpoint-3"), **settings)
    return {"whole": whole.state_dict(), "resumed": resumed.state_dict()}


def run_rank(rank: int, size: int, port: int, folder: Path) -> None:
    """What one process does."""
    torch.set_num_threads(1)
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    learnt = learn(folder, size)
    torch.save((learnt, resume(folder)), folder / f"rank-{rank}.pt")
    torch.distributed.destroy_process_group()
