"""One process on a GPU, with NCCL: collectives are issued, and it learns what it learns alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.collectives import checks
from tests.collectives.processes import failures

CHECKS = (
    checks.a_table_learns_the_same_with_sgd_momentum_and_decay,
    checks.a_table_learns_the_same_with_adagrad,
    checks.a_table_learns_the_same_with_adam_and_decay,
    checks.a_table_learns_the_same_with_the_optimisers_of_torch,
    checks.entries_that_wait_for_a_step_are_averaged,
    checks.the_norm_that_is_clipped_is_that_of_the_mean,
    checks.positions_of_sequences_learn_the_same,
    checks.a_dense_head_learns_the_same,
    checks.cosines_a_learnt_temperature_and_smoothing_learn_the_same,
    checks.weights_of_examples_count_over_all_ranks,
    checks.micro_batches_without_sync_are_added_up,
    checks.micro_batches_that_are_averaged_each_are_added_up,
    checks.sparse_embeddings_of_an_encoder_are_averaged_too,
    checks.a_captured_head_learns_the_same,
    checks.batches_of_all_ranks_are_one_batch,
    checks.groups_of_all_ranks_stay_apart,
    checks.two_towers_see_the_items_of_all_ranks,
)


def one_rank(folder: Path, backend: str) -> dict[str, str]:
    return failures({check.__name__: check for check in CHECKS}, 1, folder, backend)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_one_rank_with_nccl(tmp_path: Path):
    assert one_rank(tmp_path, "nccl") == {}


@pytest.mark.long
def test_on_one_rank_with_gloo(tmp_path: Path):
    assert one_rank(tmp_path, "gloo") == {}
