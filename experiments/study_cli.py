"""What the commands of the studies share: options, the cost before anything starts, a budget of
minutes, and packing what came out.
"""

from __future__ import annotations

import argparse
import sys
import threading
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import torch
from study_protocols import TAUS, Places, Schemes, read_data
from study_runs import Protocol, SchemeWork, cost, over_all_labels, perform

from headtail.errors import HeadtailError
from headtail.files.atomic import replace_file
from longtail import until_stopped

PART = 15 * 2**20
"""Most bytes of a packed file."""
LOSSES = ("all", "full", "sampled")
"""Kinds of losses: over all labels, or on sampled negatives."""
KEPT = ("frame.npz", "runs/*.csv", "runs/*.json", "runs/*.npz", "searches/*.json")


def parser_for(about: str | None, protocols: Sequence[Protocol]) -> argparse.ArgumentParser:
    """The options of a study."""
    parser = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [protocol.name for protocol in protocols]
    needs_files = any(not protocol.generated for protocol in protocols)
    parser.add_argument(
        "--data",
        type=Path,
        required=needs_files,
        default=Path(),
        help="folder with the data sets; generated ones need none",
    )
    parser.add_argument("--cifar", type=Path, help="folder with CIFAR-10's python files")
    parser.add_argument("--out", type=Path, default=Path("run/evidence"), help="folder of runs")
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="NAME")
    parser.add_argument("--schemes", nargs="+", help="only these schemes")
    parser.add_argument("--losses", choices=LOSSES, default="all", help="only losses of this kind")
    parser.add_argument("--seeds", type=int, help="fewer seeds than the protocol has")
    parser.add_argument("--workers", type=int, default=1, help="runs side by side")
    parser.add_argument("--minutes", type=float, help="stop after this time, with rows kept")
    parser.add_argument("--cost", action="store_true", help="state the cost and stop")
    parser.add_argument("--packed", type=Path, help="folder of packed files to write and read")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    return parser


def run_study(given: argparse.Namespace, protocols: Sequence[Protocol], schemes: Schemes) -> int:
    """Run what is missing of a study; returns an exit status."""
    asked = [protocol for protocol in protocols if protocol.name in given.only]
    if given.packed is not None:
        unpack(given.packed, given.out)
    total = 0.0
    for protocol in asked:
        names = _names(given, protocol, schemes)
        seeds = min(protocol.seeds, given.seeds or protocol.seeds)
        folder = given.out / protocol.name
        runs, minutes, measured = cost(protocol, folder, names, seeds, given.workers)
        source = "by the runs that are there" if measured else "a guess"
        print(f"{protocol.name}: {runs} runs, about {minutes:.0f} minutes ({source})", flush=True)
        total += minutes
    print(f"About {total:.0f} minutes are missing.", flush=True)
    if given.cost:
        return 0
    steps = (partial(_study, given, protocol, schemes) for protocol in asked)
    if given.packed is None:
        return until_stopped(steps, given.minutes)
    with packed_often(given.out, given.packed, [protocol.name for protocol in asked]):
        return until_stopped(steps, given.minutes)


def _study(given: argparse.Namespace, protocol: Protocol, schemes: Schemes) -> int:
    names = _names(given, protocol, schemes)
    data = read_data(protocol, Places(given.data, given.cifar))
    folder = given.out / protocol.name
    work = SchemeWork(given.device, protocol, folder, TAUS, given.seeds)
    return perform(work, data, names, workers=given.workers, say=partial(print, flush=True))


def _names(given: argparse.Namespace, protocol: Protocol, schemes: Schemes) -> list[str]:
    names = schemes(protocol)
    unknown = set(given.schemes or ()) - set(names)
    if unknown and len(given.only) == 1:
        raise HeadtailError(f"{protocol.name} has no scheme {sorted(unknown)}: {names}.")
    wanted = [name for name in names if not given.schemes or name in given.schemes]
    if given.losses != "all":
        wanted = [name for name in wanted if over_all_labels(name) == (given.losses == "full")]
    if names and not wanted and len(given.only) == 1:
        raise HeadtailError(
            f"None of these schemes is of `--losses {given.losses}`: {given.schemes or names}."
        )
    return wanted


@contextmanager
def packed_often(
    folder: Path, to: Path, names: Sequence[str], seconds: float = 60.0
) -> Iterator[None]:
    """`pack` now and then, and at the end: a machine may be taken away at any moment."""
    over = threading.Event()

    def work() -> None:
        while not over.wait(seconds):
            pack(folder, to, names)

    thread = threading.Thread(target=work, name="packing")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        pack(folder, to, names)


def pack(folder: Path, to: Path, names: Sequence[str], most: int = PART) -> list[Path]:
    """Put the files of finished runs into a few archives, each below a number of bytes."""
    made = []
    for name in names:
        home = folder / name
        paths = [path for pattern in KEPT for path in sorted(home.glob(pattern))]
        contents = {path.relative_to(folder).as_posix(): _content(path) for path in paths}
        files = {name: content for name, content in contents.items() if content is not None}
        for number, part in enumerate(_parts(files, most)):
            made.append(to / f"{name}-{number}.zip")
            replace_file(made[-1], partial(_write, part))
        for path in to.glob(f"{name}-[0-9]*.zip"):
            if path not in made:  # of a time when there was more to keep
                path.unlink(missing_ok=True)
    return made


def _content(path: Path) -> bytes | None:
    """What a file holds; None if a process that finished its scheme has just deleted it."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _parts(files: Mapping[str, bytes], most: int) -> list[dict[str, bytes]]:
    """The files in parts that are each smaller than so many bytes as archives."""
    parts: list[dict[str, bytes]] = []
    size = most
    for name, content in files.items():
        # zip takes 76 bytes more, 22 once, and the name twice
        each = min(len(content), len(zlib.compress(content))) + 100 + 2 * len(name)
        if size + each > most:
            parts.append({})
            size = 0
        parts[-1][name] = content
        size += each
    return parts


def _write(files: Mapping[str, bytes], to: Path) -> None:
    with zipfile.ZipFile(to, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)


def unpack(packed: Path, folder: Path) -> int:
    """Bring back what `pack` wrote; files that are there already stay. Returns how many came."""
    came = 0
    for path in sorted(packed.glob("*.zip")):
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                target = (folder / name).resolve()
                if not target.is_relative_to(folder.resolve()):
                    raise HeadtailError(f"`{path}` holds `{name}`, which leads out of the folder.")
                if not target.exists():
                    replace_file(target, partial(_place, archive.read(name)))
                    came += 1
    return came


def _place(content: bytes, to: Path) -> None:
    to.write_bytes(content)


def main_of(
    about: str | None, protocols: Sequence[Protocol], schemes: Schemes
) -> Callable[[], int]:
    """The command of a study."""
    return main_of_parts(about, {"all": (protocols, schemes)})


def main_of_parts(
    about: str | None, parts: Mapping[str, tuple[Sequence[Protocol], Schemes]]
) -> Callable[[], int]:
    """The command of a study with parts, each with its data sets and schemes; the first is what
    runs by default.
    """

    def main() -> int:
        first = next(iter(parts))
        chooser = argparse.ArgumentParser(add_help=False)
        chooser.add_argument("--part", choices=parts, default=first, help="of the study")
        protocols, schemes = parts[chooser.parse_known_args()[0].part]
        parser = parser_for(about, protocols)
        if len(parts) > 1:
            parser.add_argument("--part", choices=parts, default=first, help="of the study")
        given = parser.parse_args()
        try:
            return run_study(given, protocols, schemes)
        except HeadtailError as error:
            print(error, file=sys.stderr)
            return 1

    return main
