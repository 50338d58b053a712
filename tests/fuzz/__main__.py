"""`python -m tests.fuzz`: damaged files and odd arguments, by the thousand.

python -m tests.fuzz --cases 20000 --seed 7 --only parquet
python -m tests.fuzz --only parquet --case 7000123 --keep found
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import suppress
from itertools import count, islice
from pathlib import Path

A_SEED = 1_000_000
"""Numbers of cases that belong to one seed."""
SLOW = ("model", "checkpoint", "comparison")
"""Targets that train or open models: every fourth number of the others is tried."""


def main() -> int:
    """Run cases, print a table by target, and return 1 if there are findings."""
    arguments = _arguments()
    # Compiled kernels are kept where the user keeps them, or each worker would compile them again.
    from headtail.files.cache_folder import cache_folder

    os.environ.setdefault("NUMBA_CACHE_DIR", str(cache_folder() / "numba"))
    os.environ.setdefault("NUMBA_NUM_THREADS", "1")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ["COLUMNS"] = "200"
    from tests.fuzz.engine import Limits, run_cases
    from tests.fuzz.targets import prepare

    folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
    try:
        targets = prepare(folder)
        names = arguments.only or list(targets)
        if unknown := set(names) - set(targets):
            print(f"No such target: {', '.join(unknown)}. There are: {', '.join(targets)}.")
            return 2
        began = time.monotonic()
        tally = Tally(arguments.keep)
        limits = Limits(arguments.seconds, memory=arguments.memory << 20)
        cases = _cases(names, arguments)
        with suppress(KeyboardInterrupt):  # what was found until then is shown
            for case, verdict, inputs in run_cases(targets, cases, folder, limits, arguments.jobs):
                tally.add(case, verdict, inputs)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    seconds = time.monotonic() - began
    print(tally.table())
    print(f"\n{tally.number:,} cases in {seconds:.0f} s.\n")
    print(tally.findings())
    if arguments.json:
        arguments.json.write_text(json.dumps(tally.facts(), indent=1))
    return 1 if tally.found else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m tests.fuzz", description=__doc__)
    parser.add_argument("--cases", type=int, default=1000, help="in all, shared by the targets")
    parser.add_argument("--seed", type=int, default=0, help="other seeds give other cases")
    parser.add_argument("--case", type=int, help="run this case alone")
    parser.add_argument("--only", nargs="+", metavar="TARGET", help="these targets alone")
    parser.add_argument("--jobs", type=int, default=2, help="worker processes")
    parser.add_argument("--seconds", type=float, default=10, help="processor time of a case")
    parser.add_argument("--memory", type=int, default=2048, help="MiB that a case may add")
    parser.add_argument("--keep", type=Path, help="folder for the first input of each finding")
    parser.add_argument("--json", type=Path, help="file for the table and the findings")
    return parser.parse_args()


def _cases(names: list[str], arguments: argparse.Namespace) -> Iterator:
    from tests.fuzz.engine import Case

    if arguments.case is not None:
        yield from (Case(name, arguments.case) for name in names)
        return
    numbers = (
        Case(name, arguments.seed * A_SEED + i)
        for i in count()
        for name in names
        if name not in SLOW or i % 4 == 0 or len(names) == 1
    )
    yield from islice(numbers, arguments.cases)


class Tally:
    """Counts verdicts by target, and keeps each finding once."""

    def __init__(self, keep: Path | None = None) -> None:
        self.keep = keep
        self.counts: dict[str, Counter] = defaultdict(Counter)
        self.found: dict[tuple[str, str], list] = defaultdict(list)
        self.detail: dict[tuple[str, str], str] = {}

    @property
    def number(self) -> int:
        return sum(counts.total() for counts in self.counts.values())

    def add(self, case, verdict, inputs: Path) -> None:
        """Count a verdict, and keep the input of a finding that is new."""
        kind = "finding" if verdict.is_finding else verdict.kind
        self.counts[case.target][kind] += 1
        if not verdict.is_finding:
            return
        key = (verdict.kind, verdict.key)
        if key not in self.found:
            self.detail[key] = verdict.detail
            if self.keep is not None and inputs.exists():
                place = self.keep / f"{case.target}-{case.number}"
                shutil.rmtree(place, ignore_errors=True)
                ignored = shutil.ignore_patterns(".cache")
                shutil.copytree(inputs, place, symlinks=True, ignore=_only_files(ignored))
            print(f"{case.target} {case.number}: {verdict.kind}: {verdict.key}", file=sys.stderr)
        self.found[key].append(case)

    def table(self) -> str:
        """A line per target: cases, ok, refused, findings."""
        lines = ["| target | cases | read | refused | findings |", "|---|---|---|---|---|"]
        for name, counts in self.counts.items():
            numbers = (counts.total(), counts["ok"], counts["refused"], counts["finding"])
            lines.append(f"| {name} | {' | '.join(f'{n:,}' for n in numbers)} |")
        return "\n".join(lines)

    def findings(self) -> str:
        """Each finding with its number of cases and the command that shows it again."""
        lines = []
        for key, cases in sorted(self.found.items()):
            again = f"python -m tests.fuzz --only {cases[0].target} --case {cases[0].number}"
            lines.append(f"* **{key[0]}**: {key[1]} ({len(cases)} cases)\n  `{again}`")
            if self.detail[key]:
                lines.append("  " + ascii(self.detail[key])[1:-1])
        return "\n".join(lines)

    def facts(self) -> dict:
        """The same for programs."""
        return {
            "targets": {name: dict(counts) for name, counts in self.counts.items()},
            "findings": self.findings(),
        }


def _only_files(ignored):
    """What `copytree` leaves out: pipes and devices too."""

    def ignore(place: str, names: list[str]) -> set[str]:
        paths = {name: Path(place) / name for name in names}
        odd = {
            name
            for name, path in paths.items()
            if not (path.is_symlink() or path.is_file() or path.is_dir())
        }
        return odd | ignored(place, names)

    return ignore


if __name__ == "__main__":
    sys.exit(main())
