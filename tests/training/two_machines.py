"""Two machines on this computer: network namespaces with one link between them."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PORT = 29400
SECONDS = 240
"""After which a launcher that has not ended hangs."""


@dataclass
class Machine:
    """One of two machines with two ranks each.

    Attributes:
        number: 1, which the launchers meet on, or 2.
        namespace: its network.
        started: launchers, the latest last, and where they print.
    """

    number: int
    namespace: str
    started: list[tuple[subprocess.Popen[bytes], Path]] = field(default_factory=list)

    def torchrun(self, log: Path, *command: str, restarts: int = 0, **variables: str) -> None:
        """Start a command on the ranks of this machine."""
        launcher = ["ip", "netns", "exec", self.namespace, sys.executable]
        launcher += ["-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "2"]
        launcher += ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"10.99.0.1:{PORT}"]
        # torchrun would ask the name of the computer, which is the same for both.
        launcher += ["--rdzv-conf", f"is_host={int(self.number == 1)}"]
        launcher += ["--local-addr", f"10.99.0.{self.number}", "--max-restarts", str(restarts)]
        usual = {
            "COLUMNS": "100",
            "GLOO_SOCKET_IFNAME": f"link{self.number}",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
        }
        environment = {**os.environ, **usual, **variables}
        with log.open("wb") as output:
            launched = subprocess.Popen(
                [*launcher, *command], stdout=output, stderr=output, env=environment
            )
        self.started.append((launched, log))

    def end(self) -> tuple[int, str]:
        """Wait for the latest launcher: its exit code, and what was printed."""
        launched, log = self.started[-1]
        return launched.wait(SECONDS), log.read_text()

    def kill(self) -> None:
        """Let the machine lose its power: its launcher and its ranks are gone at once."""
        listed = subprocess.run(
            ["ip", "netns", "pids", self.namespace], capture_output=True, text=True, check=True
        )
        for pid in listed.stdout.split():
            os.kill(int(pid), signal.SIGKILL)


@contextmanager
def two_machines() -> Iterator[tuple[Machine, Machine]]:
    """Two machines that reach each other, and nothing else."""
    if sys.platform != "linux" or shutil.which("ip") is None or os.geteuid() != 0:
        pytest.skip("network namespaces need Linux, root and the command `ip`")
    names = [f"headtail-{os.getpid()}-{number}" for number in (1, 2)]
    machines = Machine(1, names[0]), Machine(2, names[1])
    try:
        for name in names:
            if _ip("netns", "add", name):
                pytest.skip("this computer does not allow network namespaces")
        ends = ["link1", "netns", names[0]], ["link2", "netns", names[1]]
        if _ip("link", "add", *ends[0], "type", "veth", "peer", "name", *ends[1]):
            pytest.skip("this computer does not allow links between network namespaces")
        for number, name in enumerate(names, 1):
            link = f"link{number}"
            assert not _ip("-n", name, "address", "add", f"10.99.0.{number}/24", "dev", link)
            assert not _ip("-n", name, "link", "set", link, "up")
            assert not _ip("-n", name, "link", "set", "lo", "up")
        yield machines
    finally:
        for machine in machines:
            if machine.started:
                machine.kill()
            for launched, _ in machine.started:
                launched.wait()
            _ip("netns", "delete", machine.namespace)


def _ip(*words: str) -> int:
    return subprocess.run(["ip", *words], capture_output=True, check=False).returncode
