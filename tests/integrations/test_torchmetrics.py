"""Metrics by slice for torchmetrics against evaluation's own numbers."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torchmetrics import MetricCollection

from headtail import HeadtailError, LabelHead, Labels, Ragged, scheme
from headtail.evaluation.measures import measure_ranking
from headtail.integrations.torchmetrics import (
    BalancedError,
    HitRateAtK,
    MacroRecallAtK,
    MRRAtK,
    NDCGAtK,
    PrecisionAtK,
    PSPAtK,
    RecallAtK,
)

LABELS = Labels.zipf(80, rarest=3)
SLICES = LABELS.slices()
N = 500


def metrics() -> dict[str, object]:
    """Each metric by the name that evaluation has for it."""
    return {
        "recall@1": RecallAtK(SLICES, 1),
        "recall@10": RecallAtK(SLICES),
        "recall@50": RecallAtK(SLICES, k=50),
        "hit-rate@10": HitRateAtK(SLICES, 10),
        "mrr@20": MRRAtK(SLICES, 20),
        "ndcg@5": NDCGAtK(SLICES, 5),
        "precision@3": PrecisionAtK(SLICES, 3),
        "psp@5": PSPAtK(SLICES, 5, labels=LABELS, num_points=N, propensity=(0.5, 0.4)),
        "macro-recall@10": MacroRecallAtK(SLICES, 10),
        "balanced-error": BalancedError(SLICES),
    }


def answers(n: int = 300) -> tuple[torch.Tensor, list[list[int]]]:
    """Rankings that are right more often than by chance, and labels, of which a point may have
    none.
    """
    generator = torch.Generator().manual_seed(0)
    many = torch.randint(0, 5, (n,), generator=generator).tolist()
    lists = [torch.randperm(80, generator=generator)[:k].tolist() for k in many]
    scores = torch.rand(n, 80, generator=generator) + LABELS.prior.float() * 5
    for i, own in enumerate(lists):
        scores[i, own] += 0.3
    return scores.topk(50).indices, lists


def expected(top: torch.Tensor, lists: list[list[int]]) -> dict[tuple[str, str], float]:
    labels = Ragged.from_lists(lists)
    how = {"num_points": N, "propensity": (0.5, 0.4), "resamples": 0}
    rows = measure_ranking(top, labels, LABELS, SLICES, **how)
    return {(row.metric, row.slice): row.value for row in rows}


def assert_equal(computed: dict[str, torch.Tensor], name: str, wanted) -> None:
    assert list(computed) == ["full", "head", "torso", "tail"]
    for slice_, value in computed.items():
        assert value.shape == ()
        if (name, slice_) in wanted:  # evaluation has some for all labels only
            exact = name.startswith(("recall", "hit-rate"))
            rel = 0.0 if exact else 1e-12
            assert float(value) == pytest.approx(wanted[name, slice_], rel=rel, abs=0), slice_


@pytest.mark.parametrize("name", metrics())
@pytest.mark.parametrize("size", [300, 7])
def test_batches_add_up_to_evaluation_s_numbers(name, size):
    top, lists = answers()
    metric = metrics()[name]
    for i in range(0, len(top), size):
        metric.update(top[i : i + size], Ragged.from_lists(lists[i : i + size]))
    assert_equal(metric.compute(), name, expected(top, lists))


@pytest.mark.filterwarnings("ignore:The ``compute`` method")
def test_a_call_returns_the_batch_s_own_value_and_reset_forgets():
    top, lists = answers()
    metric = RecallAtK(SLICES, 10)
    first = metric(top[:100], lists[:100])
    assert_equal(first, "recall@10", expected(top[:100], lists[:100]))
    second = metric(top[100:], lists[100:])
    assert_equal(second, "recall@10", expected(top[100:], lists[100:]))
    assert_equal(metric.compute(), "recall@10", expected(top, lists))
    metric.reset()
    assert all(math.isnan(value) for value in metric.compute().values())


def test_targets_may_have_any_form_and_topk_comes_from_the_head():
    torch.manual_seed(0)
    head = LabelHead(LABELS, 8, scheme("softmax", LABELS))
    hidden = torch.randn(6, 8)
    target = torch.tensor([3, 1, 70, 5, -100, 9])
    lists = [[y] if y >= 0 else [] for y in target.tolist()]
    multi_hot = torch.zeros(6, 80, dtype=torch.bool)
    for i, own in enumerate(lists):
        multi_hot[i, own] = True
    padded = torch.stack([target, torch.full((6,), -100)], 1)
    found = []
    for form in (target, target.int(), lists, Ragged.from_lists(lists), padded, multi_hot):
        metric = NDCGAtK(SLICES, 20)
        metric.update(head.topk(hidden, 20), form)
        found.append(repr(metric.compute()))
    assert len(set(found)) == 1
    metric.update(head.logits(hidden).topk(20), target)
    assert repr(metric.compute()) == found[0], "torch's own topk too"


def test_a_collection_keeps_metrics_apart_that_agree_on_the_first_batch():
    other = LABELS.slices(head=1000, tail=500)
    collection = MetricCollection(
        {"one": RecallAtK(SLICES, 1), "ten": RecallAtK(SLICES, 10), "other": RecallAtK(other, 1)}
    )
    right = torch.arange(10).repeat(3, 1)
    collection.update(right, torch.tensor([0, 0, 0]))
    collection.update(right, torch.tensor([3, 3, 3]))
    found = collection.compute()
    assert float(found["one_full"]) == 0.5
    assert float(found["ten_full"]) == 1.0
    assert float(found["other_full"]) == 0.5
    assert math.isnan(found["one_tail"])


def _two_ranks(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    top, lists = answers()
    # The ranks have different numbers of batches, and the second one none but a small one.
    mine = [(0, 100), (100, 290)] if rank == 0 else [(290, 300)]
    found = {}
    for name, metric in metrics().items():
        for start, end in mine:
            metric.update(top[start:end], lists[start:end])
        found[name] = {slice_: float(value) for slice_, value in metric.compute().items()}
    (folder / f"{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


def test_two_processes_add_up_to_one(tmp_path):
    mp.spawn(_two_ranks, (tmp_path,), nprocs=2)  # pyright: ignore[reportPrivateImportUsage]
    wanted = expected(*answers())
    for rank in (0, 1):
        found = json.loads((tmp_path / f"{rank}.json").read_text())
        for name, values in found.items():
            tensors = {s: torch.tensor(v, dtype=torch.float64) for s, v in values.items()}
            assert_equal(tensors, name, wanted)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: RecallAtK(LABELS), "`slices` must be a Slices, but got Labels. Write for example"),
        (lambda: RecallAtK(SLICES, 0), "`k` must be a whole number of at least 1, but got 0."),
        (
            lambda: PSPAtK(SLICES, labels=Labels.zipf(5)),
            "`slices` has 80 labels, but `labels` has 5. Make them equal.",
        ),
    ],
)
def test_bad_settings_are_refused_in_a_sentence(make, sentence):
    with pytest.raises(HeadtailError) as refused:
        make()
    assert str(refused.value).startswith(sentence)


TOP = torch.arange(10).repeat(2, 1)


@pytest.mark.parametrize(
    ("top", "target", "sentence"),
    [
        (TOP[:, :5], [1, 2], "`top` holds 5 labels per point, but this metric looks at the first"),
        (TOP, [1, 2, 3], "`top` must be the best labels of 3 points, of shape [3, K], but got"),
        (TOP.float(), [1, 2], "`top` must hold integer label ids, but got torch.float32"),
        (TOP + 75, [1, 2], "`top` must hold label ids from 0 to 79, or -1 for none, but got 84"),
        (TOP, [1, 80], "`target` must hold label ids from 0 to 79, but got 80"),
        (TOP.tolist(), [1, 2], "`top` must be a Tensor, but got list"),
    ],
)
def test_bad_batches_are_refused_in_a_sentence(top, target, sentence):
    with pytest.raises(HeadtailError) as refused:
        RecallAtK(SLICES).update(top, torch.tensor(target))
    assert str(refused.value).startswith(sentence)


def test_without_torchmetrics_a_sentence_names_the_extra():
    code = (
        "import sys; sys.modules['torchmetrics'] = None\n"
        "from headtail import HeadtailError\n"
        "try:\n    import headtail.integrations.torchmetrics\n"
        "except HeadtailError as error:\n    print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == (
        "A metric by slice needs torchmetrics, which is not installed. Run `pip install "
        "'headtail[torchmetrics]'`.\n"
    )
