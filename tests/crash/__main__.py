"""`python -m tests.crash`: disturb `train` and `compare` in every way, and print a table."""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

from tests.crash.runs import COMMANDS, Case, Warm, disturb, kill_at_random, warm
from tests.crash.shim import Plan

KINDS = (
    Plan("kill"),
    Plan("torn"),
    Plan("lose-content"),
    Plan("lose-names"),
    Plan("fail", error="ENOSPC"),
    Plan("fail", error="ENOSPC", lasting=True),
    Plan("fail", error="EIO"),
    Plan("fail", error="EROFS", lasting=True),
    Plan("fail", error="EACCES"),
    Plan("clock"),
)


def main() -> int:
    """Exit code 1 if there are findings."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash", description=__doc__)
    parser.add_argument("--kills", type=int, default=100, help="kills at random times")
    parser.add_argument("--seed", type=int, default=0, help="of those times")
    parser.add_argument("--every", type=int, default=1, help="disturb every k-th call")
    parser.add_argument("--commands", nargs="+", default=list(COMMANDS), choices=list(COMMANDS))
    parser.add_argument("--kinds", nargs="+", default=[plan.kind for plan in KINDS])
    parser.add_argument("--folder", type=Path, help="for the files; by default a temporary one")
    options = parser.parse_args()
    cases: dict[tuple[str, str], list[Case]] = defaultdict(list)
    try:
        with (
            tempfile.TemporaryDirectory(dir=options.folder) as folder,
            warm(Path(folder)) as at,
        ):
            for command in options.commands:
                _disturb_all(at, command, cases, options)
            _random_kills(at, cases, options)
    finally:  # after Ctrl-C too
        _print(cases)
    return int(any(case.findings for every in cases.values() for case in every))


def _disturb_all(
    at: Warm, command: str, cases: dict[tuple[str, str], list[Case]], options: argparse.Namespace
) -> None:
    calls = at.calls(command)
    print(f"{command}: {calls} calls change files", flush=True)
    for kind in KINDS:
        if kind.kind not in options.kinds:
            continue
        for n in range(1, calls + 1, options.every):
            plan = Plan(kind.action, n, kind.error, kind.lasting)
            _note(cases, kind.kind, disturb(at, command, plan))
    for action in ("lose-content", "lose-names"):
        plan = Plan(action, after_end=True)
        _note(cases, plan.kind, disturb(at, command, plan))


def _random_kills(
    at: Warm, cases: dict[tuple[str, str], list[Case]], options: argparse.Namespace
) -> None:
    chance = random.Random(options.seed)
    longest = {}
    for command in options.commands:
        at.prepare(command)
        begun = time.monotonic()
        at.run(COMMANDS[command])
        longest[command] = time.monotonic() - begun
    for _ in range(options.kills):
        command = chance.choice(options.commands)
        case = kill_at_random(at, command, chance, longest[command])
        _note(cases, "kill at a random time", case)


def _note(cases: dict[tuple[str, str], list[Case]], kind: str, case: Case) -> None:
    cases[case.command, kind].append(case)
    if case.findings:
        findings = "\n    ".join([*case.findings[:4], f"({len(case.findings)})"])
        print(f"{case.command}, {kind}, call {case.plan.n}:\n    {findings}", flush=True)


def _print(cases: dict[tuple[str, str], list[Case]]) -> None:
    print("| command | kind | cases | identical after resuming | findings |")
    print("|---|---|---|---|---|")
    for (command, kind), every in cases.items():
        identical = sum(not any("rerun" in text for text in case.findings) for case in every)
        findings = sum(bool(case.findings) for case in every)
        print(f"| {command} | {kind} | {len(every)} | {identical} | {findings} |")


if __name__ == "__main__":
    sys.exit(main())
