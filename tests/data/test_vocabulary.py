"""Names in the cache: what is saved comes back, and what cannot be names is refused."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from headtail import HeadtailError
from headtail.data.cache import Entry, cached
from headtail.data.tables.vocabulary import label_names, save_ids, saved_ids


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HEADTAIL_CACHE", str(tmp_path / "cache"))


def entry(tmp_path, **arrays) -> Entry:
    source = tmp_path / "source"
    source.write_text("content")

    def build(store):
        for name, array in arrays.items():
            if isinstance(array, pa.Array):
                save_ids(store, name, array)
            else:
                store.append(name, array)

    return cached([source], {}, build)


@pytest.mark.parametrize("names", [["a", "", "é"], [], [3, 1, 2]], ids=str)
def test_names_come_back(tmp_path, names):
    kind = pa.int64() if names and isinstance(names[0], int) else pa.string()
    held = entry(tmp_path, names=pa.array(names, kind))
    assert label_names(held) == names
    assert saved_ids(held, "users") is None


TEXT = np.frombuffer(b"abc", np.uint8)
FORGED = {
    "longer than the bytes": (TEXT, np.array([2, 9])),
    "negative": (TEXT, np.array([3, -2])),
    "huge": (TEXT, np.array([2**62, 2**62])),
    "bytes that are not UTF-8": (np.frombuffer(b"a\xff\xfe", np.uint8), np.array([1, 2])),
    "no list": (np.zeros((2, 2), np.int64), None),
}


@pytest.mark.parametrize("forged", FORGED)
def test_what_cannot_be_names_is_refused_with_the_entry_to_delete(tmp_path, forged):
    data, lengths = FORGED[forged]
    arrays = {"names": data} if lengths is None else {"names": data, "names_lengths": lengths}
    held = entry(tmp_path, **arrays)
    with pytest.raises(HeadtailError, match=r"cache entry `.*` is damaged .* Delete it") as raised:
        label_names(held)
    assert held.key in str(raised.value)
