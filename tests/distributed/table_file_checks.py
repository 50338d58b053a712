"""What must hold of a sharded table in one file, checked on every rank."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file

from headtail import Constant, HeadtailError, LabelHead, Labels, SampledSoftmaxLoss, Uniform
from headtail.distributed import ShardedLabelHead, export_table, import_table, table_file
from headtail.files.tensors import load_tensors
from tests.distributed.checkpoint_checks import _folder
from tests.distributed.small_runs import D, L, Run


def a_label_head_loads_the_exported_table_and_a_sharded_one_too() -> None:
    usual = table_file.BLOCK
    table_file.BLOCK = 7 * D * 8  # several blocks
    try:
        with _folder() as folder:
            path = folder / "model.safetensors"
            run = Run.new("adam")
            run.steps(0, 1, 2)
            export_table(run.head, path)
            one = _label_head()
            one.load_state_dict(load_file(path))
            own = run.head.share.labels()
            assert torch.equal(one.weight[own], run.head.weight)
            assert one.bias is not None
            assert run.head.bias is not None
            assert torch.equal(one.bias[own], run.head.bias)
            tensors, facts = load_tensors(path, "a table", "")
            assert facts == {"labels": L, "dim": D}
            assert tensors.keys() == {"weight", "bias"}
            other = Run.new()
            import_table(other.head, path)
            assert torch.equal(other.head.weight, run.head.weight)
            assert other.head.bias is not None
            assert torch.equal(other.head.bias, run.head.bias)
    finally:
        table_file.BLOCK = usual


def the_file_of_a_label_head_is_imported() -> None:
    with _folder() as folder:
        path = folder / "plain.safetensors"
        one = _label_head()
        with torch.no_grad():
            generator = torch.Generator().manual_seed(3)
            one.weight.copy_(torch.randn(L, D, generator=generator))
        if dist.get_rank() == 0:
            folder.mkdir()
            save_file(one.state_dict(), path)
        dist.barrier()
        run = Run.new("sgd")
        run.steps(0, 1)
        import_table(run.head, path)
        run.head.flush()  # weight decay of the old rows is not due to the new ones
        assert torch.equal(run.head.weight, one.weight[run.head.share.labels()])


def a_narrow_table_survives_its_file() -> None:
    with _folder() as folder:
        labels = Labels.zipf(L)
        loss = SampledSoftmaxLoss(Uniform(labels, 4), Constant())
        head = ShardedLabelHead(labels, D, loss, dtype=torch.bfloat16)
        export_table(head, folder / "narrow.safetensors")
        other = ShardedLabelHead(labels, D, loss, dtype=torch.bfloat16)
        assert not torch.equal(head.weight, other.weight)
        import_table(other, folder / "narrow.safetensors")
        assert torch.equal(head.weight, other.weight)


def files_that_do_not_fit_are_refused_on_every_rank() -> None:
    with _folder() as folder:
        path = folder / "model.safetensors"
        run = Run.new()
        before = run.head.weight.detach().clone()
        with pytest.raises(HeadtailError, match="There is no file"):
            import_table(run.head, path)
        export_table(run.head, path)
        with pytest.raises(HeadtailError, match=r"`bias` has the shape \[53, 1\].*\[60, 1\]"):
            import_table(Run.new(labels=60).head, path)
        dist.barrier()
        if dist.get_rank() == 0:
            content = bytearray(path.read_bytes())
            content[-3] ^= 1
            path.write_bytes(content)
        dist.barrier()
        with pytest.raises(HeadtailError, match="damaged"):
            import_table(run.head, path)
        dist.barrier()
        if dist.get_rank() == 0:
            path.write_bytes(b"no tensors")
        dist.barrier()
        with pytest.raises(HeadtailError, match="cannot be read as a table"):
            import_table(run.head, path)
        with pytest.raises(HeadtailError, match="cannot be written"):
            export_table(run.head, path / "below.safetensors")
        assert torch.equal(before, run.head.weight)


def _label_head() -> LabelHead:
    labels = Labels.zipf(L)
    loss = SampledSoftmaxLoss(Uniform(labels, 4), Constant())
    return LabelHead(labels, D, loss, bias=True, dtype=torch.float64)
