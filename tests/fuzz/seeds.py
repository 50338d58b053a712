"""Small valid data in every format that `headtail.load` reads.

`FORMATS` has the name of a format, what writes it into a folder, and how it is loaded. Each may be
written in a few variants, numbered from 0.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import scipy.sparse
from PIL import Image
from safetensors.numpy import save_file

from tests.data.test_cifar import write_hundred, write_ten
from tests.data.test_parquet_images import png

ROWS = 40


@dataclass(frozen=True)
class Seed:
    """Valid data.

    Attributes:
        write: writes them into an empty folder.
        data: what is loaded: a name in the folder, or the folder itself.
        options: of `headtail.load`; paths are relative to the folder.
    """

    write: Callable[[Path], object]
    data: str = "."
    options: dict[str, Any] = field(default_factory=dict)


def _rng() -> np.random.Generator:
    return np.random.default_rng(0)


def _log(rows: int = ROWS) -> dict[str, list[Any]]:
    rng = _rng()
    return {
        "user": rng.integers(0, 6, rows).tolist(),
        "item": rng.integers(0, 9, rows).tolist(),
        "rating": rng.integers(1, 6, rows).tolist(),
        "time": (1_500_000_000 + np.arange(rows) * 60).tolist(),
    }


def _lines(path: Path, rows: Any, separator: str, header: list[str] | None = None) -> None:
    lines = [separator.join(map(str, row)) for row in ([header] if header else []) + list(rows)]
    path.write_text("\n".join(lines) + "\n")


def _log_text(name: str, separator: str, header: bool) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        log = _log()
        _lines(folder / name, zip(*log.values(), strict=True), separator, header and list(log))

    return write


def _xc(folder: Path, header: bool = True) -> None:
    for name, points in (("train", 12), ("test", 5)):
        lines = [f"{i % 4},4 {i % 7}:0.5 {7 + i % 3}:1.25" for i in range(points)]
        start = [f"{points} 10 5"] if header else []
        (folder / f"{name}.txt").write_text("\n".join(start + lines) + "\n")


def _splits(folder: Path) -> None:
    lines = [f"{i % 4} {i % 7}:0.5 {7 + i % 3}:1" for i in range(12)]
    (folder / "shop_data.txt").write_text("\n".join(["12 10 5", *lines]) + "\n")
    (folder / "shop_trSplit.txt").write_text("".join(f"{i} {i + 1}\n" for i in range(1, 9)))
    (folder / "shop_tstSplit.txt").write_text("".join(f"{i} {i - 8}\n" for i in range(9, 13)))


def _matrices(folder: Path) -> None:
    for part, rows in (("trn", 8), ("tst", 4)):
        features = "".join(f"{i % 5}:1.5 {5 + i % 2}:2\n" for i in range(rows))
        labels = "".join(f"{i % 3}:1\n" for i in range(rows))
        (folder / f"{part}_X_Xf.txt").write_text(f"{rows} 7\n{features}")
        (folder / f"{part}_X_Y.txt").write_text(f"{rows} 3\n{labels}")
    (folder / "Y.txt").write_text("red\ngreen\nblue\n")


def _fasttext(folder: Path) -> None:
    for name, rows in (("train", 20), ("test", 6)):
        text = [f"__label__{'abc'[i % 3]} the cat {i % 4} sleeps" for i in range(rows)]
        (folder / f"{name}.txt").write_text("\n".join(text) + "\n")


def _raw_text(folder: Path) -> None:
    for name, rows in (("trn", 20), ("tst", 6)):
        (folder / f"{name}_X.txt").write_text("".join(f"the cat {i % 4}\n" for i in range(rows)))
        (folder / f"{name}_Y.txt").write_text(
            "".join(f"{i % 3},{(i + 1) % 3}\n" for i in range(rows))
        )
    (folder / "label_names.txt").write_text("red\ngreen\nblue\n")


def _raw_npz(folder: Path) -> None:
    for name, rows in (("trn", 12), ("tst", 4)):
        (folder / f"X.{name}.txt").write_text("".join(f"the cat {i % 4}\n" for i in range(rows)))
        labels = scipy.sparse.csr_matrix(np.eye(3, dtype=np.float32)[np.arange(rows) % 3])
        scipy.sparse.save_npz(folder / f"Y.{name}.npz", labels)


def _records(folder: Path) -> None:
    for name, rows in (("trn", 12), ("tst", 4)):
        lines = [
            {"uid": str(i), "title": f"the cat {i % 4}", "content": "sleeps", "target_ind": [i % 3]}
            for i in range(rows)
        ]
        (folder / f"{name}.json").write_text("".join(json.dumps(line) + "\n" for line in lines))
    titles = [{"uid": str(i), "title": f"name {i}"} for i in range(3)]
    (folder / "lbl.json").write_text("".join(json.dumps(line) + "\n" for line in titles))


def _jsonl(folder: Path) -> None:
    rows = [
        {"user": f"u{i % 5}", "item": i % 7, "time": 1_500_000_000 + i, "tags": ["a", "b"]}
        for i in range(ROWS)
    ]
    (folder / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def _ratings(folder: Path) -> None:
    rows = [{"user": i % 5, "item": i % 7, "rating": 1 + i % 3} for i in range(ROWS)]
    (folder / "ratings.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def _vectors(folder: Path) -> None:
    rows = [{"label": "abc"[i % 3], "features": [i, 3, i % 2]} for i in range(ROWS)]
    (folder / "vectors.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def _reviews(folder: Path) -> None:
    rows = [{"text": f"the cat {i % 4} sleeps", "label": "abc"[i % 3]} for i in range(ROWS)]
    (folder / "reviews.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def _user_items(folder: Path) -> None:
    for name, step in (("train", 1), ("test", 2)):
        lines = [
            " ".join(str((user + i) % 6) for i in range(2 + user % 3 + step)) for user in range(8)
        ]
        lines = [f"{user} {line}" for user, line in enumerate(lines)]
        (folder / f"{name}.txt").write_text("\n".join(lines) + "\n")


def _two_columns(folder: Path) -> None:
    (folder / "Beauty.txt").write_text("".join(f"{i // 5 + 1} {i % 7 + 1}\n" for i in range(ROWS)))


def _lists(folder: Path) -> None:
    rows = [(f"u{i}", " ".join(str((i + j) % 6) for j in range(4))) for i in range(12)]
    _lines(folder / "sessions.csv", rows, ",", ["user", "items"])


def _triples(folder: Path) -> None:
    names = "abcde"
    triples = [(names[i % 5], f"r{i % 2}", names[(i * 2 + 1) % 5]) for i in range(20)]
    parts = (("train", triples), ("valid", triples[:3]), ("test", triples[3:7]))
    for name, part in parts:
        _lines(folder / f"{name}.txt", part, "\t")


def _features_csv(folder: Path) -> None:
    rows = [(0.5 * i, i % 7, "abc"[i % 3]) for i in range(ROWS)]
    _lines(folder / "flowers.csv", rows, ",", ["width", "height", "label"])


def _texts_csv(folder: Path) -> None:
    rows = [(f"the cat {i % 4}", f"{'abc'[i % 3]}|d") for i in range(ROWS)]
    _lines(folder / "texts.csv", rows, ",", ["text", "label"])


def _item_features(folder: Path) -> None:
    _log_text("log.csv", ",", True)(folder)
    _lines(
        folder / "items.csv",
        [(i, f"word{i % 3} blue", 0.5 * i) for i in range(9)],
        ",",
        ["item", "title", "price"],
    )


def _json_items(folder: Path) -> None:
    _log_text("log.csv", ",", True)(folder)
    rows = [{"item": i, "title": f"word{i % 3} blue", "price": 5 * i} for i in range(9)]
    (folder / "items.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def _as_table(kind: str, ending: str) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        table = pa.table(_tables()[kind])
        name = f"{kind}.{ending}"
        if name.endswith(".parquet"):
            pq.write_table(table, folder / name)
        else:
            pyarrow.feather.write_feather(table, str(folder / name), compression="uncompressed")

    return write


def _tables() -> dict[str, dict[str, Any]]:
    """Columns of every kind of data that tables hold."""
    rng = _rng()
    vectors = pa.array(rng.normal(size=(ROWS, 3)).tolist(), pa.list_(pa.float32(), 3))
    names = pa.array([f"i{i % 6}" for i in range(ROWS)]).dictionary_encode()
    return {
        "log": _log(),
        "lists": {
            "user": [f"u{i}" for i in range(12)],
            "items": [[(i + j) % 6 for j in range(5)] for i in range(12)],
        },
        "words": {"user": [f"u{i % 5}" for i in range(ROWS)], "item": names},
        "vectors": {"embedding": vectors, "label": [f"l{i % 3}" for i in range(ROWS)]},
        "text": {
            "text": [f"the cat {i % 4}" for i in range(ROWS)],
            "label": [["a"], ["a", "b"]] * (ROWS // 2),
        },
    }


def _parquet_images(folder: Path) -> None:
    for name, number in (("train", 6), ("test", 2)):
        pixels = _rng().integers(0, 256, (number, 4, 6, 3), dtype=np.uint8)
        images = [{"bytes": png(image), "path": "x"} for image in pixels]
        pq.write_table(
            pa.table({"image": images, "label": [i % 3 for i in range(number)]}),
            folder / f"{name}.parquet",
        )


def _arrays(ragged: bool, ending: str) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        features = _rng().normal(size=(12, 3)).astype(np.float32)
        labels = {"labels": np.arange(12) % 4}
        if ragged:
            labels = {"label_values": np.arange(24) % 5, "label_offsets": np.arange(0, 25, 2)}
        arrays = {"features": features, **labels}
        if ending == "npz":
            np.savez(folder / "points.npz", **arrays)
        else:
            save_file(arrays, folder / "points.safetensors")

    return write


def _draw(path: Path, number: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(number).integers(0, 256, (8, 9, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)


def _image_folder(folder: Path) -> None:
    for part, images in (("train", 3), ("test", 1)):
        for label in ("cat", "dog"):
            for i in range(images):
                ending = "png" if i % 2 else "jpg"
                _draw(folder / part / label / f"{i}.{ending}", i)


def _image_list(folder: Path) -> None:
    for part, images in (("train", 4), ("test", 2)):
        names = [f"{part}/{i}.png" for i in range(images)]
        for i, name in enumerate(names):
            _draw(folder / name, i)
        lines = [f"{name} {i % 2}\n" for i, name in enumerate(names)]
        (folder / f"Zoo_LT_{part}.txt").write_text("".join(lines))


def _image_json(folder: Path) -> None:
    for part, images in (("train", 4), ("val", 2)):
        listed = [{"id": i, "file_name": f"{part}/{i}.png"} for i in range(images)]
        for i, image in enumerate(listed):
            _draw(folder / image["file_name"], i)
        tree = {
            "images": listed,
            "annotations": [{"id": i, "image_id": i, "category_id": i % 2} for i in range(images)],
            "categories": [{"id": i, "name": name} for i, name in enumerate(("cat", "dog"))],
        }
        (folder / f"{part}2018.json").write_text(json.dumps(tree))


def _cifar_archive(folder: Path) -> None:
    made = write_ten(folder / "made", number=1)
    with tarfile.open(folder / "cifar-10-python.tar", "w") as archive:
        archive.add(made, made.name)
    for path in sorted(made.iterdir()):
        path.unlink()
    made.rmdir()
    (folder / "made").rmdir()


def _formats() -> dict[str, list[Seed]]:
    kinds = ("log", "lists", "words", "vectors", "text")
    binary = {
        ending: [Seed(_as_table(kind, ending), f"{kind}.{ending}") for kind in kinds]
        for ending in ("parquet", "feather", "arrow")
    }
    return {
        "xc": [
            Seed(_xc),
            Seed(lambda folder: _xc(folder, header=False), options={"skip_bad_lines": True}),
            Seed(_xc, "train.txt", {"format": "svmlight"}),
            Seed(_splits),
        ],
        "sparse-matrices": [Seed(_matrices)],
        "fasttext": [Seed(_fasttext), Seed(_fasttext, options={"text_features": "hashing"})],
        "raw-text": [Seed(_raw_text), Seed(_records), Seed(_raw_npz)],
        "delimited": [
            Seed(_log_text("ratings.csv", ",", True), "ratings.csv"),
            Seed(_log_text("u.data", "\t", False), "u.data"),
            Seed(_log_text("ratings.dat", "::", False), "ratings.dat", {"min_rating": 2}),
            Seed(_log_text("log.tsv", "\t", True), "log.tsv", {"skip_bad_lines": True}),
            Seed(_log_text("log.csv", ";", True), "log.csv", {"format": "interactions"}),
            Seed(_two_columns, "Beauty.txt"),
            Seed(_lists, "sessions.csv"),
        ],
        "interactions": [Seed(_user_items)],
        "triples": [Seed(_triples)],
        "text-tables": [
            Seed(_features_csv, "flowers.csv"),
            Seed(_texts_csv, "texts.csv", {"label_separator": "|"}),
            Seed(_reviews, "reviews.jsonl"),
        ],
        "json-lines": [
            Seed(_jsonl, "log.jsonl"),
            Seed(_ratings, "ratings.jsonl", {"min_rating": 2}),
            Seed(_vectors, "vectors.jsonl", {"features": "features"}),
        ],
        "item-features": [
            Seed(_item_features, "log.csv", {"item_features": "items.csv"}),
            Seed(_json_items, "log.csv", {"item_features": "items.jsonl"}),
        ],
        "npz": [Seed(_arrays(ragged, "npz"), "points.npz") for ragged in (False, True)],
        "safetensors": [
            Seed(_arrays(ragged, "safetensors"), "points.safetensors") for ragged in (False, True)
        ],
        **binary,
        "parquet-images": [Seed(_parquet_images)],
        "image-folder": [
            Seed(_image_folder),
            Seed(_image_folder, options={"skip_bad_images": True}),
        ],
        "image-list": [Seed(_image_list)],
        "image-json": [Seed(_image_json)],
        "cifar": [
            Seed(lambda folder: write_ten(folder, number=1)),
            Seed(write_hundred),
            Seed(_cifar_archive, "cifar-10-python.tar"),
        ],
    }


FORMATS = _formats()
"""The formats by name, each in one or more variants."""
