"""Text files of the Extreme Classification Repository and svmlight.

Lines are `label,label feature:value feature:value …`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from headtail.core.targets import Ragged
from headtail.data.bag import Bag
from headtail.data.cache import Entry, Store, cached, key_of
from headtail.data.packed import BLOCK, LONGEST_LINE, MAX_EXPANSION, line_blocks
from headtail.data.points import Points, Progress
from headtail.data.readers.text_lines import Header, LineStore
from headtail.errors import HeadtailError, check_count, check_exists


@dataclass(frozen=True, eq=False)
class TextFile:
    """A text file, read.

    Attributes:
        points: one per line; features and labels keep the order of the file.
        header: points, features and labels as the first line gives them, or None where the file
            begins with a point.
        bad_lines: number of lines that were skipped.
        notes: sentences about the file that a user should see.
        digest: changes with the content.
    """

    points: Points
    header: Header | None
    bad_lines: int
    notes: tuple[str, ...]
    digest: str


def read_text(
    path: Path,
    *,
    skip_bad_lines: bool = False,
    num_features: int | None = None,
    num_labels: int | None = None,
    progress: Progress | None = None,
    block: int = BLOCK,
    longest_line: int = LONGEST_LINE,
    max_expansion: float = MAX_EXPANSION,
) -> TextFile:
    r"""Read one text file, plain or compressed (gzip, bzip2, xz, zstd), or take it from the cache.

    A first line of three whole numbers is a header: points, features, labels; one of two numbers is
    the header of a sparse matrix without labels. In what follows, a line that begins with a blank
    or with a feature has no labels. Comments (`# …`) and query ids (`qid:…`) are left out.

    Args:
        path: the file.
        skip_bad_lines: leave bad lines out, and count them, instead of refusing the file.
        num_features: D. A file with a header must agree; without either, it is the largest id plus
            one.
        num_labels: L, likewise.
        progress: called after each block.
        block: bytes parsed at a time.
        longest_line: bytes that are read in search of a newline.
        max_expansion: how many times its size a compressed file may become.

    >>> folder = getfixture("tmp_path")
    >>> getfixture("monkeypatch").setenv("HEADTAIL_CACHE", str(folder / "cache"))
    >>> _ = (folder / "train.txt").write_text("2 4 3\n0,2 1:0.5 3:1\n 0:2\n")
    >>> points = read_text(folder / "train.txt").points
    >>> points.features.to_dense()
    tensor([[0.0000, 0.5000, 0.0000, 1.0000],
            [2.0000, 0.0000, 0.0000, 0.0000]])
    >>> points.labels
    Ragged(values=tensor([0, 2], dtype=torch.int32), offsets=tensor([0, 2, 2]))
    """
    path = existing(path)
    sizes = {"num_features": num_features, "num_labels": num_labels}
    for name, value in sizes.items():
        if value is not None:
            check_count(name, value)

    def build(store: Store) -> None:
        lines = LineStore(path, store, skip_bad_lines, num_features, num_labels)
        for text, share in line_blocks(path, block, longest_line, max_expansion):
            lines.take(text)
            if progress is not None:
                progress(f"reading {path.name}", share)
        lines.finish()

    recipe = {"reader": "text", "skip_bad_lines": skip_bad_lines} | sizes
    entry = cached([path], recipe | ({"with": "rows"} if skip_bad_lines else {}), build)
    return _text_file(path, entry, key_of([path], recipe))


def _text_file(path: Path, entry: Entry, digest: str) -> TextFile:
    arrays = entry.arrays
    facts = entry.facts
    features = Bag(
        arrays["features.offsets"],
        arrays["features.columns"],
        arrays["features.values"],
        facts["num_columns"],
    )
    labels = Ragged(arrays["labels.values"], arrays["labels.offsets"])
    points = Points(features, labels, facts["num_labels"], rows=arrays.get("rows"))
    header = facts["header"] and tuple(facts["header"])
    notes = tuple(f"{path}: {note}" for note in facts["notes"])
    return TextFile(points, header, facts["bad_lines"], notes, digest)


def existing(path: Path) -> Path:
    """Refuse a path that is not a file, and name the nearest that is."""
    path = Path(path)
    if path.is_dir():
        raise HeadtailError(
            f"`{path}` is a folder. Give a file in it, such as `{path / 'train.txt'}`."
        )
    return check_exists(path)
