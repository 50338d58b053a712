"""What must hold of checkpoints, checked on every rank."""

from __future__ import annotations

import os
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch.nn.parallel import DistributedDataParallel

from headtail import HeadtailError, RowAdam, SplitOptimizer
from headtail.collectives.ranks import Ranks
from headtail.distributed import load_checkpoint, save_checkpoint
from headtail.distributed.together import Beside
from headtail.files.checksums import DamagedWarning, opened, sealed
from tests.distributed.small_runs import OPTIMISERS, Run, assert_equal


@contextmanager
def _folder() -> Iterator[Path]:
    """An empty folder that all ranks know."""
    names: list[Any] = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(names)
    yield Path(names[0]) / "checkpoints"
    dist.barrier()
    if dist.get_rank() == 0:
        shutil.rmtree(names[0])


def _names(folder: Path) -> list[str]:
    """What is in a folder, once all ranks are done with it."""
    dist.barrier()
    names = sorted(path.name for path in folder.iterdir())
    dist.barrier()
    return names


def ranks_wait_in_checkpoints_as_long_as_in_training() -> None:
    usual = timedelta(seconds=60)  # of the group that these checks run in
    changed = timedelta(hours=12)
    for waits in (usual, changed):
        try:
            dist.distributed_c10d._set_pg_timeout(waits)
            group: Any = Beside(Ranks.of().group).group
        finally:
            dist.distributed_c10d._set_pg_timeout(usual)
        assert group._get_backend(torch.device("cpu")).options._timeout == waits
        dist.destroy_process_group(group)


def training_continues_bit_for_bit_with_every_row_optimiser() -> None:
    for kind in OPTIMISERS:
        with _folder() as folder:
            whole = Run.new(kind)
            losses = whole.steps(0, 1, 2)
            _halve_rates(whole)
            losses += whole.steps(3, 4, 5)
            first = Run.new(kind)
            first.steps(0, 1, 2)
            _halve_rates(first)
            save_checkpoint(folder, **first.parts, facts={"step": 3})
            # Saving changes nothing that comes after, pending weight decay included.
            assert first.steps(3, 4, 5) == losses[3:], kind
            assert_equal(whole.everything(), first.everything())
            resumed = Run.new(kind)
            torch.manual_seed(999)
            assert load_checkpoint(folder, **resumed.parts) == {"step": 3}
            assert resumed.steps(3, 4, 5) == losses[3:], kind
            assert_equal(whole.everything(), resumed.everything())
            # Into objects that have been trained further.
            assert load_checkpoint(folder, **resumed.parts) == {"step": 3}
            resumed.steps(3, 4, 5)
            assert_equal(whole.everything(), resumed.everything())


def _halve_rates(run: Run) -> None:
    """As a schedule would: rates are saved too."""
    for optimizer in (run.optimizer, run.encoder_optimizer):
        for group in optimizer.param_groups:
            group["lr"] /= 2


def an_asynchronous_checkpoint_is_of_the_moment_it_was_asked_for() -> None:
    with _folder() as folder:
        run = Run.new()
        run.steps(0, 1, 2)
        then = run.everything()
        saving = save_checkpoint(folder, **run.parts, facts={"step": 3}, asynchronous=True)
        run.steps(3, 4, 5, 6)
        second = save_checkpoint(folder, **run.parts, facts={"step": 7}, asynchronous=True)
        assert saving.done(), "a save waits for the one before it"
        path = saving.wait()
        assert path.name == "checkpoint-1"
        assert second.wait().name == "checkpoint-2"
        assert second.done()
        dist.barrier()
        if dist.get_rank() == 0:
            shutil.rmtree(folder / "checkpoint-2")
        dist.barrier()
        again = Run.new()
        assert load_checkpoint(folder, **again.parts) == {"step": 3}
        assert_equal(then, again.everything())


def a_new_head_loads_what_the_one_before_it_is_still_saving() -> None:
    with _folder() as folder:
        run = Run.new()
        run.steps(0, 1)
        then = run.everything()
        saving = save_checkpoint(folder, **run.parts, facts={"step": 2}, asynchronous=True)
        again = Run.new()
        assert load_checkpoint(folder, **again.parts) == {"step": 2}
        assert saving.done()
        assert_equal(then, again.everything())


def any_number_of_ranks_loads_what_another_number_saved() -> None:
    """With groups of the ranks that there are: all, all but one, one, and all again."""
    size = dist.get_world_size()
    numbers = [size, max(1, size - 1), 1, size]
    for kind in ("momentum", "adagrad", "adagrad per row", "adam"):
        with _folder() as folder:
            _change_hands(folder, numbers, kind)


def _change_hands(folder: Path, numbers: list[int], kind: str) -> None:
    groups = [dist.new_group(list(range(number))) for number in numbers]
    known: list[Any] = [None, None]
    for place, (number, group) in enumerate(zip(numbers, groups, strict=True)):
        if dist.get_rank() < number:
            run = Run.new(kind, group)
            facts = load_checkpoint(folder, **run.parts)
            assert facts == (None if place == 0 else {"place": place - 1})
            if place:
                # Weight decay that was pending when it was saved: rows have changed their ranks.
                run.head.flush()
                others = "random" if dist.get_rank() else "-"
                assert_equal(known[0], run.everything(), but=others)
                assert abs(known[1] - run.given_loss()) < 1e-12
            run.steps(3 * place, 3 * place + 1, 3 * place + 2)
            save_checkpoint(folder, **run.parts, facts={"place": place}, asynchronous=True).wait()
            run.head.flush()
            known = [run.everything(), run.given_loss()]
        dist.broadcast_object_list(known)


def the_last_two_checkpoints_are_kept_and_leftovers_removed() -> None:
    with _folder() as folder:
        run = Run.new()
        if dist.get_rank() == 0:
            left = folder / ".checkpoint-1.00000000-1-1-0.part"
            left.mkdir(parents=True)
            os.utime(left, (0, 0))
        dist.barrier()
        for number in range(4):
            save_checkpoint(folder, **run.parts, facts={"number": number})
        assert _names(folder) == ["checkpoint-3", "checkpoint-4"]
        files = [f"rank-{rank}.safetensors" for rank in range(dist.get_world_size())]
        assert _names(folder / "checkpoint-4") == sorted(["metadata.json", *files])
        own = load_file(folder / "checkpoint-4" / files[dist.get_rank()])
        assert any(torch.equal(value, run.head.weight) for value in own.values())


def a_damaged_checkpoint_gives_way_to_the_one_before() -> None:
    for damage in (_flip, _cut, _delete, _tear):
        with _folder() as folder:
            run = Run.new()
            run.steps(0, 1)
            save_checkpoint(folder, **run.parts, facts={"step": 2})
            then = run.everything()
            run.steps(2, 3)
            path = save_checkpoint(folder, **run.parts, facts={"step": 4}).wait()
            dist.barrier()
            if dist.get_rank() == 0:
                damage(path)
            dist.barrier()
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always", DamagedWarning)
                assert load_checkpoint(folder, **run.parts) == {"step": 2}, damage
            told = [w for w in caught if w.category is DamagedWarning]
            assert len(told) == (dist.get_rank() == 0)
            assert_equal(then, run.everything())
            # The next one does not push the good one out.
            assert save_checkpoint(folder, **run.parts).wait().name == "checkpoint-3"
            assert _names(folder) == ["checkpoint-1", "checkpoint-3"]


def _flip(path: Path) -> None:
    file = path / f"rank-{dist.get_world_size() - 1}.safetensors"
    content = bytearray(file.read_bytes())
    content[-5] ^= 1
    file.write_bytes(content)


def _cut(path: Path) -> None:
    file = path / "rank-0.safetensors"
    file.write_bytes(file.read_bytes()[:-8])


def _delete(path: Path) -> None:
    (path / "rank-0.safetensors").unlink()


def _tear(path: Path) -> None:
    file = path / "metadata.json"
    file.write_bytes(file.read_bytes()[:-8])


def what_cannot_be_loaded_is_refused_on_every_rank() -> None:
    with _folder() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore", DamagedWarning)
        run = Run.new()
        run.steps(0)
        assert load_checkpoint(folder, **run.parts) is None
        with pytest.raises(HeadtailError, match="dict of JSON"):
            save_checkpoint(folder, **run.parts, facts={"step": torch.ones(1)})
        save_checkpoint(folder, **{**run.parts, "encoder_optimizer": None})
        before = run.everything()
        with pytest.raises(HeadtailError, match=r"another table: it has 53 .* has 50 labels"):
            load_checkpoint(folder, **Run.new(labels=50).parts)
        with pytest.raises(HeadtailError, match="without `encoder_optimizer`"):
            load_checkpoint(folder, **run.parts)
        with pytest.raises(HeadtailError, match=r"state of `RowAdagrad`, .* is `RowAdam`"):
            load_checkpoint(folder, head=run.head, optimizer=RowAdam(run.head.parameters()))
        with pytest.raises(HeadtailError, match=r"`encoder.weight`.*another model"):
            load_checkpoint(folder, head=run.head, encoder=torch.nn.Linear(3, 3))
        with pytest.raises(HeadtailError, match="neither `head` nor `encoder`"):
            save_checkpoint(folder, head=run.head, optimizer=run.encoder_optimizer)
        assert_equal(before, run.everything(), but="random")
        _rewrite(folder / "checkpoint-1", "format", 2)
        with pytest.raises(HeadtailError, match="format 2"):
            load_checkpoint(folder, **run.parts)
        _rewrite(folder / "checkpoint-1", "format", 1)
        _rewrite(folder / "checkpoint-1", "description", {"facts": {}})
        with pytest.raises(HeadtailError, match="not a checkpoint that headtail has saved"):
            load_checkpoint(folder, **run.parts)
        _rewrite(folder / "checkpoint-1", "tensors", {"head.weight": 3})
        with pytest.raises(HeadtailError, match=r"damaged: .* no other one"):
            load_checkpoint(folder, **run.parts)
        dist.barrier()
        assert _names(folder) == ["checkpoint-1"]


def _rewrite(path: Path, key: str, value: Any) -> None:
    dist.barrier()
    if dist.get_rank() == 0:
        file = path / "metadata.json"
        content = opened(file.read_text())
        file.write_text(sealed(content | {key: value}))
    dist.barrier()


def one_rank_that_cannot_write_fails_on_all_and_leaves_nothing() -> None:
    from headtail.distributed import checkpoint_storage

    usual = checkpoint_storage.write_stream

    def full(*args: Any) -> int:
        raise OSError(28, "No space left on device")

    with _folder() as folder:
        run = Run.new()
        save_checkpoint(folder, **run.parts)
        for asynchronous in (False, True):
            if dist.get_rank() == dist.get_world_size() - 1:
                checkpoint_storage.write_stream = full
            try:
                with pytest.raises(HeadtailError, match="No space left on device"):
                    save_checkpoint(folder, **run.parts, asynchronous=asynchronous).wait()
            finally:
                checkpoint_storage.write_stream = usual
            assert _names(folder) == ["checkpoint-1"]
        save_checkpoint(folder, **run.parts)
        assert _names(folder) == ["checkpoint-1", "checkpoint-2"]


def only_the_head_can_be_loaded_and_leaves_random_states_alone() -> None:
    with _folder() as folder:
        run = Run.new()
        run.steps(0, 1)
        save_checkpoint(folder, **run.parts)
        other = Run.new()
        state = torch.get_rng_state()
        load_checkpoint(folder, head=other.head)
        other.head.flush()
        run.head.flush()
        assert torch.equal(other.head.weight, run.head.weight)
        assert torch.equal(state, torch.get_rng_state())


def one_model_with_one_optimiser_is_saved_once() -> None:
    """The head inside the encoder's module, under DDP, and all optimisers as one."""
    with _folder() as folder:
        losses = []
        for number in range(2):
            run = Run.new("adam")
            model = _Model(run)
            # Tables of samplers are those of the rank's own labels.
            tensors = [*run.head.named_parameters(), *run.head.named_buffers()]
            ignored = [f"head.{name}" for name, _ in tensors]
            DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, ignored)
            wrapped = DistributedDataParallel(model)
            both = SplitOptimizer(run.encoder_optimizer, run.optimizer)
            parts = {"head": run.head, "optimizer": both, "encoder": wrapped}
            if number == 0:
                _train(wrapped, both)
                path = save_checkpoint(folder, **parts).wait()
            else:
                assert load_checkpoint(folder, **parts) == {}
            losses.append(_train(wrapped, both))
        assert losses[0] == losses[1]
        names = opened((path / "metadata.json").read_text())["tensors"]
        assert "head.weight" in names
        assert not [name for name in names if "encoder.head" in name]
        assert "optimizer.encoder.encoder.0.weight.exp_avg" in names


class _Model(torch.nn.Module):
    def __init__(self, run: Run, encoder: torch.nn.Module | None = None) -> None:
        super().__init__()
        self.encoder = encoder or run.encoder
        self.head = run.head

    def forward(self, features: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(features), target)


def encoders_of_fsdp_are_loaded_by_other_numbers_of_ranks() -> None:
    with _folder() as folder:
        first = _with_fsdp(None)
        _train_fsdp(first)
        save_checkpoint(folder, **_parts(first), asynchronous=True).wait()
        losses = _train_fsdp(first)
        again = _with_fsdp(None)
        load_checkpoint(folder, **_parts(again))
        assert _train_fsdp(again) == losses
        whole = {name: p.full_tensor() for name, p in again[1].named_parameters()}
        save_checkpoint(folder, **_parts(again))
        group = dist.new_group([0])
        if dist.get_rank() == 0:
            alone = _with_fsdp(group)
            load_checkpoint(folder, **_parts(alone))
            for name, p in alone[1].named_parameters():
                assert torch.equal(p.full_tensor(), whole[name])
                moment = alone[2].state[p]["exp_avg"].full_tensor()
                assert moment.shape == whole[name].shape
                assert moment.any()


def _with_fsdp(group: Any) -> Any:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard

    run = Run.new(group=group)
    torch.manual_seed(0)
    encoder = torch.nn.Linear(6, 6).double()
    mesh = DeviceMesh.from_group(dist.group.WORLD if group is None else group, "cpu")
    fully_shard(encoder, mesh=mesh)
    return run, encoder, torch.optim.Adam(encoder.parameters(), lr=0.1)


def _parts(made: Any) -> dict[str, Any]:
    run, encoder, optimizer = made
    return {**run.parts, "encoder": encoder, "encoder_optimizer": optimizer}


def _train(model: torch.nn.Module, *optimizers: torch.optim.Optimizer) -> list[float]:
    losses = []
    for number in range(3):
        loss = model(torch.randn(4, 6, dtype=torch.float64), torch.arange(4) + number)
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def _train_fsdp(made: Any) -> list[float]:
    run, encoder, optimizer = made
    return _train(_Model(run, encoder), optimizer, run.optimizer)
