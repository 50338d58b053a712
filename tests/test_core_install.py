"""The wheel with its core dependencies alone: what works, and what a missing extra says."""

from __future__ import annotations

import re
import subprocess
import sys
import venv
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXTRAS = ("numba", "pyarrow", "PIL", "tyro", "rich", "tensorboard", "sklearn")


@pytest.fixture(scope="module")
def core(tmp_path_factory) -> Path:
    """A virtual environment that holds the wheel and its core dependencies, and nothing else."""
    folder = tmp_path_factory.mktemp("core")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    venv.create(folder / "venv", symlinks=True)
    site = next((folder / "venv").glob("lib/python*/site-packages"))
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
        wheel.extractall(site)
    for name in required_by(metadata.Distribution.at(next(site.glob("headtail-*.dist-info")))):
        link(metadata.distribution(name), site)
    return folder / "venv" / "bin" / "python"


def required_by(wheel: metadata.Distribution) -> set[str]:
    """Every installed package that the core needs, directly or through others."""
    installed = {normal(package.name) for package in metadata.distributions()}
    waiting = direct(wheel)
    names: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name in installed and name not in names:
            names.add(name)
            waiting |= direct(metadata.distribution(name))
    return names


def direct(package: metadata.Distribution) -> set[str]:
    """The packages that a package always needs; those of its extras are left out."""
    lines = [line for line in package.requires or [] if "extra ==" not in line]
    return {normal(re.split(r"[^\w.-]", line, maxsplit=1)[0]) for line in lines}


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def link(package: metadata.Distribution, site: Path) -> None:
    """Make an installed package importable there as well, without copying it."""
    tops = {file.parts[0] for file in package.files or []} - {"..", "__pycache__"}
    for top in tops:
        source = Path(str(package.locate_file(top)))
        if source.exists() and not (site / top).exists():
            (site / top).symlink_to(source)


def run(python: Path, code: str) -> str:
    command = [str(python), "-I", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_environment_holds_no_extra(core):
    code = f"from importlib.util import find_spec; print([n for n in {EXTRAS} if find_spec(n)])"
    assert run(core, code) == "[]"


def test_a_head_trains_explains_and_audits_with_the_core_alone(core):
    code = """
import torch, headtail as ht
labels = ht.Labels.zipf(2000)
loss = ht.SampledSoftmaxLoss(ht.WithinBatch(labels), ht.Tail(labels))
head = ht.LabelHead(labels, dim=32, loss=loss, sparse=True)
optimiser = ht.RowAdagrad(head.parameters(), lr=0.5)
torch.manual_seed(0)
target = torch.arange(64) % 50
hidden = torch.randn(64, 32)
losses = []
for _ in range(30):
    value = head(hidden, target)
    value.backward()
    optimiser.step()
    optimiser.zero_grad()
    losses.append(value.item())
assert losses[-1] < losses[0] / 2, losses
assert head.topk(hidden, k=5).indices.shape == (64, 5)
print(ht.explain(loss, labels, batch_size=64).leans, ht.audit(head.loss.sampler, labels).passed)
"""
    assert run(core, code) == "tail True"


def test_schemes_are_compared_with_the_core_alone(core, tmp_path):
    code = f"""
import headtail as ht
from headtail.training.config import Training
data = ht.load("synthetic:points=300,test=60,features=80,labels=40")
quick = Training(dim=8, epochs=2, batch=32, negatives=8)
schemes = ["within-batch:tail", "uniform:importance", "softmax"]
comparison = ht.compare(data, schemes, out={str(tmp_path / "out")!r}, training=quick)
tail = [row.value for row in comparison.rows
        if (row.split, row.metric, row.slice) == ("test", "recall@10", "tail")]
print(len(tail), all(0 <= value <= 1 for value in tail))
from headtail.report import write_report  # jinja2 comes with PyTorch
write_report(comparison, {str(tmp_path / "report.html")!r})
"""
    assert run(core, code) == "4 True"
    assert "within-batch:tail" in (tmp_path / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "extra"),
    [
        (["-c", "import headtail as ht; ht.load('data.parquet')"], "data"),
        (["-m", "headtail", "--help"], "cli"),
    ],
    ids=["data", "cli"],
)
def test_a_missing_extra_is_one_sentence_that_names_it(core, arguments, extra, tmp_path):
    (tmp_path / "data.parquet").write_bytes(b"PAR1")
    command = [str(core), *arguments]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert done.stdout == ""
    (sentence,) = re.findall(r"^.*not installed.*$", done.stderr, re.MULTILINE)
    assert sentence.endswith(f"Run `pip install 'headtail[{extra}]'`.")
