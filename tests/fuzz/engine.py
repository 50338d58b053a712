"""Runs cases in worker processes, so that a crash, a hang or a memory explosion is one verdict.

A worker is forked from a process that has imported everything and used nothing, and handles many
cases. What kills or blocks it is attributed to its case, and the next case gets a new worker.
"""

from __future__ import annotations

import ctypes
import os
import random
import resource
import shutil
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from multiprocessing import connection, get_context
from pathlib import Path
from typing import Any

from headtail.errors import HeadtailError
from tests.fuzz.verdicts import OK, REFUSED, Verdict, Wrong, leftovers, of_exception, of_sentence

FORK = get_context("fork")
END_WITH_PARENT = 1
"""`PR_SET_PDEATHSIG` of prctl(2): a run that is killed leaves no workers behind."""


@dataclass(frozen=True)
class Case:
    """One case: equal names and numbers give equal cases."""

    target: str
    number: int

    def random(self) -> random.Random:
        return random.Random(f"{self.target} {self.number}")


@dataclass(frozen=True)
class Limits:
    """What a case may use.

    Attributes:
        seconds: of processor time.
        waiting: seconds in all; processors may be busy with other work.
        memory: bytes above what the worker has before the case.
    """

    seconds: float = 10.0
    waiting: float = 60.0
    memory: int = 2 << 30


Target = Callable[[Path, Case], bool]
"""Makes the input of a case in an empty folder and uses it. Returns whether it was accepted; what
it refuses raises a HeadtailError or returns False, and what is wrong raises `Wrong`."""


def judge(target: Target, case: Case, folder: Path, memory: int) -> Verdict:
    """Run one case in this process, in a folder of its own."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    os.chdir(folder)
    os.environ["HEADTAIL_CACHE"] = str(folder / ".cache")
    _limit_memory(memory)
    try:
        verdict = OK if target(folder, case) else REFUSED
    except HeadtailError as error:
        verdict = of_sentence(str(error), folder, case.target)
    except Wrong as wrong:
        verdict = wrong.verdict
    except (Exception, SystemExit) as error:
        verdict = of_exception(error)
    if not verdict.is_finding and (left := leftovers(folder)):
        verdict = Verdict("leftover", f"{case.target} leaves files behind", ", ".join(left[:5]))
    return verdict


def run_cases(
    targets: dict[str, Target], cases: Iterable[Case], folder: Path, limits: Limits, jobs: int
) -> Iterator[tuple[Case, Verdict, Path]]:
    """Run cases in `jobs` workers, and give each with its verdict and the folder of its input.

    The folder is valid until the next case is requested.
    """
    waiting = iter(cases)
    workers = [_Worker(targets, folder / f"worker-{i}", limits) for i in range(jobs)]
    try:
        busy = [worker for worker in workers if worker.begin(next(waiting, None))]
        while busy:
            connection.wait([worker.pipe for worker in busy], timeout=0.5)
            for worker in list(busy):
                if (verdict := worker.verdict()) is None:
                    continue
                yield worker.case, verdict, worker.folder
                if not worker.begin(next(waiting, None)):
                    busy.remove(worker)
    finally:
        for worker in workers:
            worker.end()


class _Worker:
    """A forked process that runs one case after the other."""

    def __init__(self, targets: dict[str, Target], folder: Path, limits: Limits) -> None:
        self.targets = targets
        self.folder = folder / "case"
        self.limits = limits
        self.case: Any = None
        self._start()

    def _start(self) -> None:
        self.pipe, theirs = FORK.Pipe()
        arguments = (self.targets, theirs, self.folder, self.limits.memory)
        self.process = FORK.Process(target=_work, args=arguments, daemon=False)
        self.process.start()
        theirs.close()

    def begin(self, case: Case | None) -> bool:
        """Send a case to the process; without one, return False."""
        if case is None:
            return False
        self.case = case
        self.began = time.monotonic()
        self.used = _processor_time(self.process.pid)
        self.pipe.send(case)
        return True

    def verdict(self) -> Verdict | None:
        """The verdict on the case, or None if it still runs in time."""
        try:
            if self.pipe.poll():
                verdict = self.pipe.recv()
                if verdict.kind == "memory":
                    self._restart()
                return verdict
        except (EOFError, OSError):
            return self._crashed()
        used = _processor_time(self.process.pid) - self.used
        waited = time.monotonic() - self.began
        if used < self.limits.seconds and waited < self.limits.waiting:
            return None
        self._restart()
        what = "computes" if used >= self.limits.seconds else "waits"
        return Verdict("hang", f"{self.case.target} {what} for ever", f"{waited:.0f} s")

    def _crashed(self) -> Verdict:
        self.process.join(5)
        code = self.process.exitcode
        name = signal.Signals(-code).name if code is not None and code < 0 else f"exit code {code}"
        said = (self.folder.parent / "stderr").read_text(errors="replace")[-400:]
        self._restart()
        return Verdict("crash", f"{self.case.target}: {name}", said)

    def _restart(self) -> None:
        self.end()
        self._start()

    def end(self) -> None:
        """End the process, and whatever it has started."""
        if self.process.pid is not None and self.process.is_alive():
            try:
                os.killpg(self.process.pid, signal.SIGKILL)
            except ProcessLookupError:
                self.process.kill()
        self.process.join()
        self.pipe.close()


def _work(targets: dict[str, Target], pipe: Any, folder: Path, memory: int) -> None:
    os.setpgid(0, 0)
    ctypes.CDLL(None).prctl(END_WITH_PARENT, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    quieten(folder.parent)
    while True:
        try:
            case = pipe.recv()
        except EOFError:
            return
        _forget_output()
        verdict = judge(targets[case.target], case, folder, memory)
        if not verdict.is_finding and (said := output()[1]):
            # Doors take what they expect on these streams away.
            last = said.strip().splitlines()[-1]
            verdict = Verdict("noise", f"{case.target} prints: {last[:60]}", said[-400:])
        pipe.send(verdict)


def quieten(folder: Path) -> None:
    """Send this process's output to files, and let every warning of a library be seen there."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, name in ((1, "stdout"), (2, "stderr")):
        file = os.open(folder / name, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
        os.dup2(file, number)
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
    warnings.simplefilter("always")
    for kind in (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning):
        warnings.simplefilter("ignore", kind)


def _forget_output() -> None:
    for number, stream in ((1, sys.stdout), (2, sys.stderr)):
        stream.flush()
        os.ftruncate(number, 0)


def output() -> tuple[str, str]:
    """What was written to both streams since the last call or the start of the case."""
    texts = []
    for number, stream in ((1, sys.stdout), (2, sys.stderr)):
        stream.flush()
        size = os.fstat(number).st_size
        texts.append(os.pread(number, min(size, 1 << 20), 0).decode("utf-8", "replace"))
    _forget_output()
    return texts[0], texts[1]


def _limit_memory(memory: int) -> None:
    """Let private memory grow by this much; files that are mapped do not count."""
    pages = int(Path("/proc/self/statm").read_text().split()[5])
    most = pages * resource.getpagesize() + memory
    resource.setrlimit(resource.RLIMIT_DATA, (most, resource.RLIM_INFINITY))


def _processor_time(pid: int | None) -> float:
    """Seconds of processor time that a process and its finished children have used."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
