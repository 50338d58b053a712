"""Commands that are disturbed once and then run again, and what must hold after each."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.crash.shim import Plan, compiled

SMALL = ["--dim", "4", "--batch", "16", "--epochs", "2", "--device", "cpu"]
COMPARED = ["compare", "../data/train.safetensors", "--test", "../data/test.safetensors"]
COMMANDS: dict[str, list[str]] = {
    "train": ["train", "../data/train.txt", "--test", "../data/test.txt", *SMALL],
    "compare": [*COMPARED, "--schemes", "uniform:tail", "softmax", "--workers", "1", *SMALL],
    "extend": [*COMPARED, "--schemes", "uniform:tail", "softmax", "--workers", "1", *SMALL],
}
"""What is disturbed. `extend` starts in the folder of a finished comparison of one scheme."""
BEFORE = {"extend": [*COMPARED, "--schemes", "softmax", "--workers", "1", *SMALL]}
TIMED = {"times.json", "made_by.json", "report.html"}
"""Files that hold times."""
MEMOS = ("digests", "safe")
"""Folders of the cache whose files save time only: they may be lost, and are checked when read."""
OPTIONAL = ("times.json", "SHA256SUMS.other")
"""Missing where a run was killed after its last step: no process saw how long it took."""
SUMS = "SHA256SUMS"
PATIENCE = 60.0
"""Seconds after which a command hangs."""
UNPLAIN = re.compile(r"Traceback|\b[A-Z]\w*(Error|Exception)\b|Fatal Python|\[Errno|os error")
"""What no user should see."""
SETTLED = 2.5
"""Seconds after which the cache remembers the digest of a new file."""
Files = dict[str, bytes]


@dataclass
class Case:
    """One disturbed command.

    Attributes:
        command: one of `COMMANDS`.
        plan: what happened to it.
        code: its exit code.
        findings: what should not be, in sentences.
        shown: the standard error of the disturbed command.
    """

    command: str
    plan: Plan
    code: int | str | None = None
    findings: list[str] = field(default_factory=list)
    shown: str = ""


class Warm:
    """The process that commands are forked from, and the folder in which they run."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self.folder = self.root / "case"
        _write_data(self.root / "data")
        environment = os.environ | {
            "LD_PRELOAD": str(compiled(self.root)),
            "HEADTAIL_KERNELS": "off",
            "COLUMNS": "100",
            "PYTHONPATH": os.pathsep.join(sys.path),
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.crash.warm"],
            env=environment,
            cwd=Path(__file__).parents[2],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        self._wanted: dict[str, Files] = {}
        self._calls: dict[str, int] = {}
        self.clear()
        self._order(do="warm", folder=str(self.folder), commands=[*COMMANDS.values()])
        time.sleep(SETTLED)

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(PATIENCE)

    def clear(self) -> None:
        """Empty the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)
        (self.folder / "grave").mkdir(parents=True)

    def prepare(self, command: str) -> None:
        """Empty the folder, but for what the command should find in it."""
        self.clear()
        if command in BEFORE:
            kept = self.root / f"before-{command}"
            if not kept.exists():
                assert self.run(BEFORE[command]) == 0, self.stderr()
                shutil.copytree(self.folder, kept)
            shutil.rmtree(self.folder)
            shutil.copytree(kept, self.folder)

    def start(self, argv: list[str], plan: Plan | None = None, name: str = "run") -> int:
        """Start a command and return its process."""
        return self._order(
            do="start",
            argv=[*argv, "--out", "out"],
            folder=str(self.folder),
            plan=asdict(plan or Plan()),
            name=name,
        )

    def wait(self, child: int, seconds: float = PATIENCE) -> int | str | None:
        """The exit code of a command, "stopped", or None if it takes longer."""
        return self._order(do="wait", child=child, seconds=seconds)

    def signal(self, child: int, name: str) -> None:
        """Send a signal, SIGKILL for example."""
        self._order(do="signal", child=child, signal=name)

    def run(self, argv: list[str], plan: Plan | None = None, name: str = "run") -> int | str | None:
        """Run a command to its end."""
        child = self.start(argv, plan, name)
        code = self.wait(child)
        if code is None:
            self.signal(child, "SIGKILL")
            self.wait(child)
        return code

    def stderr(self, name: str = "run") -> str:
        """What a command wrote to standard error."""
        return (self.folder / f"{name}.stderr").read_text(errors="replace")

    def stdout(self, name: str = "run") -> str:
        """What a command wrote to standard output."""
        return (self.folder / f"{name}.stdout").read_text(errors="replace")

    def files(self) -> Files:
        """Every file of output and cache; folders end with a slash, and have no content."""
        found = {}
        for path in sorted(self.folder.glob("**/*")):
            name = str(path.relative_to(self.folder))
            if name.partition("/")[0] not in ("out", "cache"):
                continue
            if "events" in (path.name, path.parent.name):  # a run does without them
                continue
            if path.name == "verified.json" or path.parent.name in MEMOS:  # these save time only
                continue
            found[f"{name}/" if path.is_dir() else name] = (
                b"" if path.is_dir() else path.read_bytes()
            )
        return found

    def wanted(self, command: str) -> Files:
        """The files of an undisturbed run."""
        if command not in self._wanted:
            self.prepare(command)
            assert self.run(COMMANDS[command]) == 0, self.stderr()
            self._wanted[command] = self.files()
            self._calls[command] = len((self.folder / "run.calls").read_text().splitlines())
        return self._wanted[command]

    def calls(self, command: str) -> int:
        """How many calls of an undisturbed run change files."""
        self.wanted(command)
        return self._calls[command]

    def _order(self, **order: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, "the warm process is gone"
        return json.loads(answer)


@contextlib.contextmanager
def warm(root: Path) -> Iterator[Warm]:
    """A warm process that ends with the block."""
    process = Warm(root)
    try:
        yield process
    finally:
        process.close()


def disturb(at: Warm, command: str, plan: Plan) -> Case:
    """Run a command that is disturbed, look at what it left, and run it again."""
    wanted = at.wanted(command)
    at.prepare(command)
    before = at.files()
    case = Case(command, plan)
    case.code = at.run(COMMANDS[command], plan, "disturbed")
    case.shown = at.stderr("disturbed")
    after = at.files()
    if command in BEFORE:
        for name in sorted(before):
            if name.startswith("out/cells/") and not same(name, before, after):
                case.findings.append(f"{name} of a finished cell was lost or changed")
    if plan.after_end:
        case.findings += differences(wanted, after, "after the power was gone, ")
    elif plan.action in ("fail", "clock"):
        case.findings += _ended_badly(at, case, wanted, after)
    elif case.code not in (-9, 0):
        case.findings.append(f"it ended with {case.code} instead of being killed")
    case.findings += run_again(at, command)
    return case


def kill_at_random(at: Warm, command: str, chance: random.Random, longest: float) -> Case:
    """Kill a command after a random time, perhaps again while it resumes, and run it again."""
    at.wanted(command)
    at.prepare(command)
    case = Case(command, Plan("kill"))
    for _ in range(chance.choice((1, 1, 2, 3))):
        child = at.start(COMMANDS[command], name="disturbed")
        case.code = at.wait(child, chance.uniform(0, longest))
        if case.code is not None:
            break
        at.signal(child, "SIGKILL")
        case.code = at.wait(child)
    if case.code not in (-9, 0):
        case.findings.append(f"it ended with {case.code}: {at.stderr('disturbed')[-300:]}")
    case.findings += run_again(at, command)
    return case


def run_again(at: Warm, command: str) -> list[str]:
    """What is not as after an undisturbed run, once the command was run again."""
    code = at.run(COMMANDS[command], name="again")
    shown = at.stderr("again")
    findings = []
    if code != 0:
        findings.append(f"the rerun ended with {code}: {shown[-300:]}")
    if UNPLAIN.search(shown):
        findings.append(f"the rerun shows: {shown[-300:]}")
    return findings + differences(at.wanted(command), at.files(), "after the rerun, ")


def same(name: str, wanted: Files, found: Files) -> bool:
    """Whether a file is there and holds the same, times aside."""
    if name not in found or Path(name).name in TIMED:
        return name in found
    if Path(name).name.startswith(SUMS):
        return _lasting(wanted[name]) == _lasting(found[name])
    return wanted[name] == found[name]


def _lasting(sums: bytes) -> list[str]:
    """The checksums of files that hold no times."""
    lines = sums.decode().splitlines()
    return [line for line in lines if line.split("  ")[-1] not in TIMED]


def _mismatches(found: Files) -> list[str]:
    """Files that do not have the checksum that is written beside them."""
    wrong = []
    for name in found:
        folder, _, last = name.rpartition("/")
        for line in found[name].decode().splitlines() if last.startswith(SUMS) else ():
            digest, _, other = line.partition("  ")
            content = found.get(f"{folder}/{other}", b"")
            if hashlib.sha256(content).hexdigest() != digest:
                wrong.append(f"{folder}/{other}")
    return wrong


def differences(wanted: Files, found: Files, when: str) -> list[str]:
    """Files that are missing, left over or different, in sentences."""
    absent = sorted(wanted.keys() - found.keys())
    missing = [name for name in absent if Path(name).name not in OPTIONAL]
    left = sorted(found.keys() - wanted.keys())
    both = sorted(wanted.keys() & found.keys())
    changed = [name for name in both if not same(name, wanted, found)]
    return [
        *(f"{when}{name} is missing" for name in missing),
        *(f"{when}{name} is left over" for name in left),
        *(f"{when}{name} differs" for name in changed),
        *(f"{when}{name} does not match its checksum" for name in _mismatches(found)),
    ]


def _ended_badly(at: Warm, case: Case, wanted: Files, after: Files) -> list[str]:
    """What is wrong with how a command ended that a call failed for."""
    findings = []
    both = case.shown + at.stdout("disturbed")
    if found := UNPLAIN.search(both):
        around = both[max(0, found.start() - 150) : found.end() + 150]
        findings.append(f"it shows: {around}")
    if case.code is None:
        findings.append("it hangs")
    elif case.code == 0:
        results = {name: content for name, content in wanted.items() if name.startswith("out/")}
        # Where a removal failed, the next command removes it.
        kept = {
            name: content
            for name, content in after.items()
            if name.startswith("out/") and ".part" not in name
        }
        findings += differences(results, kept, "it ended well, but ")
    elif case.code not in (1, 2):
        findings.append(f"it ended with {case.code}")
    elif case.code == 2 and len(re.findall("^headtail: ", case.shown, re.MULTILINE)) != 1:
        findings.append(f"it gives no sentence: {case.shown[-300:]}")
    return findings


def _write_data(folder: Path) -> None:
    """A few points as text and, with one label each, as dense arrays."""
    import torch
    from safetensors.torch import save_file

    folder.mkdir()
    chance = random.Random(0)
    for part, number in (("train", 60), ("test", 20)):
        lines = [f"{number} 30 8"]
        labels = [min(int(chance.expovariate(0.5)), 7) for _ in range(number)]
        for label in labels:
            both = ",".join(map(str, sorted({label, chance.randrange(8)})))
            values = " ".join(f"{i}:1" for i in sorted(chance.sample(range(30), 4)))
            lines.append(f"{both} {values}")
        (folder / f"{part}.txt").write_text("\n".join(lines) + "\n")
        features = torch.tensor([[chance.gauss(0, 1) for _ in range(6)] for _ in range(number)])
        arrays = {"features": features, "labels": torch.tensor(labels)}
        save_file(arrays, folder / f"{part}.safetensors")
