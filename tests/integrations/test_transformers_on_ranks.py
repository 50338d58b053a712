"""Hugging Face's trainer on two processes learns what one learns."""

from __future__ import annotations

import socket

import pytest
import torch
import torch.multiprocessing as mp

from tests.integrations.transformers_on_ranks import learn, run_rank


@pytest.fixture(scope="module")
def ranks(tmp_path_factory) -> list:
    folder = tmp_path_factory.mktemp("ranks")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.spawn(run_rank, (2, port, folder), nprocs=2)  # pyright: ignore[reportPrivateImportUsage]
    return [torch.load(folder / f"rank-{rank}.pt", weights_only=True) for rank in range(2)]


@pytest.mark.long
def test_two_processes_learn_what_one_learns(ranks, tmp_path):
    expected = learn(tmp_path, 1)
    for learnt, _ in ranks:
        for name, (weights, sizes) in expected.items():
            assert learnt[name][1] == pytest.approx(sizes, rel=1e-4), name
            for key, value in weights.items():
                torch.testing.assert_close(
                    learnt[name][0][key], value, rtol=1e-3, atol=1e-5, msg=f"{name}: {key}"
                )


@pytest.mark.long
def test_tables_stay_equal_on_all_ranks(ranks):
    (one, with_decay), (other, also_with_decay) = ranks
    for name, (weights, _) in one.items():
        for key, value in weights.items():
            assert torch.equal(value, other[name][0][key]), f"{name}: {key}"
    # Ranks read other rows, so that decay reaches a row at other times: the same but for rounding.
    for name, value in with_decay["whole"].items():
        torch.testing.assert_close(value, also_with_decay["whole"][name], rtol=1e-5, atol=1e-6)


@pytest.mark.long
def test_two_processes_resume_bit_for_bit(ranks):
    for _, runs in ranks:
        for name, value in runs["whole"].items():
            assert torch.equal(value, runs["resumed"][name]), name
