"""The package as others meet it: light to import, typed, whole in its wheel."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]


def run(code: str, **kwargs) -> str:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, **kwargs
    ).stdout.strip()


def test_importing_headtail_loads_nothing_heavy_beyond_torch():
    code = """
import torch, sys
before = set(sys.modules)
import headtail
new = set(sys.modules) - before
heavy = {"scipy", "rich", "tyro", "numba", "jinja2", "pyarrow", "matplotlib", "pandas", "beartype"}
packages = {name.partition(".")[0] for name in new} & heavy
compilers = {"torch._dynamo", "torch._inductor", "sympy"} & new
rooms = {"headtail.data", "headtail.training", "headtail.comparison", "headtail.cli"} & new
print(sorted(packages | compilers | rooms))
"""
    assert run(code) == "[]"


def test_the_wheel_installed_elsewhere_works(tmp_path):
    build = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--wheel-dir",
        str(tmp_path),
        str(ROOT),
    ]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("headtail-*.whl")
    elsewhere = tmp_path / "elsewhere"
    with zipfile.ZipFile(wheel) as files:
        names = files.namelist()
        files.extractall(elsewhere)
    assert "headtail/py.typed" in names
    assert not [name for name in names if not name.startswith(("headtail/", "headtail-"))]
    code = f"""
import sys; sys.path.insert(0, {str(elsewhere)!r})
import torch, headtail as ht
assert ht.__file__.startswith({str(elsewhere)!r}), ht.__file__
labels = ht.Labels.zipf(1000)
head = ht.LabelHead(labels, 8, ht.scheme("within-batch:tail", labels), sparse=True)
head(torch.randn(4, 8), torch.tensor([1, 2, 3, 999])).backward()
ht.RowAdam(head.parameters()).step()
print(ht.explain(head.loss, labels).leans, head.topk(torch.randn(1, 8), 3).indices.shape)
"""
    assert run(code, cwd=tmp_path) == "tail torch.Size([1, 3])"
