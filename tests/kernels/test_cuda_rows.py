"""Adagrad by Triton: interpreted on the CPU where there is no GPU."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

pytest.importorskip("triton")

PROGRAM = """
import torch
from headtail.kernels import cuda_rows

device = {device!r}
torch.manual_seed(0)
for shape in ((1, 1), (3, 517), (2, 1024), (41, 129)):
    p, total, grad = torch.randn(shape), torch.rand(shape), torch.randn(shape)
    total[0, 0] = grad[0, 0] = 0
    exact_total = total.double() + grad.double() ** 2
    exact = p.double() - 0.05 * grad.double() / (exact_total.sqrt() + 1e-10)
    plain_total = total + grad * grad
    plain = p - 0.05 * grad / (plain_total.sqrt() + 1e-10)
    for lr in (0.05, torch.tensor(0.05, device=device)):
        q, sums = p.clone().to(device), total.clone().to(device)
        cuda_rows.adagrad_(q, sums, grad.to(device), lr, 1e-10)
        assert (q.cpu() - exact).norm() <= 1.1 * (plain - exact).norm() + 1e-9, shape
        assert (sums.cpu() - exact_total).norm() <= 1.1 * (plain_total - exact_total).norm() + 1e-9, shape
        assert q[0, 0] == p[0, 0]
    assert cuda_rows.fits(p, total) and not cuda_rows.fits(p.double()) and not cuda_rows.fits(torch.randn(4, 3).T)
print("done")
"""


def test_the_triton_kernel_is_as_near_to_the_truth_as_torch_on_ragged_shapes():
    gpu = torch.cuda.is_available()
    environment = os.environ | ({} if gpu else {"TRITON_INTERPRET": "1"})  # read when triton is imported: a process of its own
    program = PROGRAM.format(device="cuda" if gpu else "cpu")
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout == "done\n", done.stderr
