"""Pickles that ask for endless work or memory: each gets one sentence, at once."""

from __future__ import annotations

import pickle
import struct
from pathlib import Path

import numpy as np
import pytest

from headtail import HeadtailError
from headtail.data.readers.cifar import TEN, _checked
from headtail.data.readers.safe_unpickle import unpickle

PATH = Path("x")


def doubled(times=34):
    """A tuple of two tuples of two tuples …, of which a memo holds each once."""
    return b"K\x00K\x00\x86" + b"".join(
        b"q%b0h%bh%b\x86" % ((bytes([i]),) * 3) for i in range(times)
    )


ENDLESS = {
    "a nested tuple as a key": b"\x80\x02}" + doubled() + b"K\x00s.",
    "a nested tuple as a persistent id": b"\x80\x02" + doubled() + b"Q.",
    "a nested tuple as the code of a type": b"\x80\x02cnumpy\ndtype\n" + doubled() + b"\x85R.",
    "a nested tuple as an encoding": b"\x80\x02c_codecs\nencode\nVa\n" + doubled() + b"\x86R.",
    "a number of 2,000 bytes": b"\x80\x02}U\x01a\x8b"
    + struct.pack("<i", 2000)
    + b"\x7f" * 2000
    + b"s.",
    "a number of 100 bytes": b"\x80\x02}U\x01a\x8a\x64" + b"\x7f" * 100 + b"s.",
    "a number of 2,000 digits": b"\x80\x02}U\x01aL" + b"9" * 2000 + b"L\ns.",
    "a name that never ends": b"\x80\x02c" + b"a" * 5000,
    "a tuple that holds itself many times": b"\x80\x02(" + b"N" * 5000 + b"t.",
    "a text that is encoded 1,000 times": b"\x80\x02c_codecs\nencode\nq\x00X\xe8\x03\x00\x00"
    + b"a" * 1000
    + b"q\x01\x85q\x020" * 1
    + b"0"
    + b"(" * 1
    + b"h\x00h\x02R" * 1000
    + b"l.",
    "a mark below the values": b"\x80\x02(0.",
    "entries of a list": b"\x80\x02]K\x01K\x02s.",
    "a value that is not there": b"\x80\x02h\x07.",
    "the state of a list": b"\x80\x02]}b.",
    "a frozen set": b"\x80\x04(K\x01\x91.",
    "protocol 6": b"\x80\x06}.",
    "lists inside lists, a million deep": b"\x80\x02" + b"]" * 1_000_000 + b"a" * 999_999 + b".",
}


@pytest.mark.parametrize("content", ENDLESS.values(), ids=ENDLESS)
def test_a_pickle_of_endless_work_gets_a_sentence_at_once(content):
    with pytest.raises(
        HeadtailError, match=r"^`x` (is not a CIFAR file|is cut off|asks for)"
    ) as it:
        unpickle(content, PATH)
    assert "\n" not in str(it.value)
    assert len(str(it.value)) < 300


def test_a_shape_that_is_not_of_numbers_is_neither_compared_nor_written():
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R(K\x01"
        + b"(K\x02Nt"
        + b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R\x89U\x01atb"
    )
    entries = unpickle(b"\x80\x02}(U\x04data" + array + b"U\x06labels](K\x00eu.", PATH)
    with pytest.raises(HeadtailError, match="but is u1 without a shape"):
        _checked(PATH, entries, TEN)


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("order", ["C", "F"])
def test_every_protocol_gives_the_same_pixels(protocol, order):
    pixels = np.arange(2 * 3072).reshape(2, 3072).astype(np.uint8, order=order)
    held = {b"data": pixels, b"labels": [3, 9], "name": "ü", b"nothing": [None, True, 1.5, -7]}
    entries = unpickle(pickle.dumps(held, protocol), PATH)
    images, labels = _checked(PATH, entries, TEN)
    assert np.array_equal(images.reshape(2, 3072), pixels)
    assert labels.tolist() == [3, 9]
    assert entries["name"] == "ü"
    assert entries["nothing"] == [None, True, 1.5, -7]


def test_more_opcodes_than_any_official_file_has_are_refused(monkeypatch):
    monkeypatch.setattr("headtail.data.readers.safe_unpickle.MOST_STEPS", 100)
    with pytest.raises(HeadtailError, match="it has more than 100 opcodes"):
        unpickle(b"\x80\x02" + b"N0" * 100 + b"}.", PATH)


def test_keys_of_any_length_make_a_short_sentence():
    held = {f"{i}" + "k" * 100_000: 1 for i in range(30)}
    with pytest.raises(HeadtailError, match="are needed") as it:
        _checked(PATH, unpickle(pickle.dumps(held), PATH), TEN)
    assert len(str(it.value)) < 700
