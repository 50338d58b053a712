"""Tensors and facts in one safetensors file, whole or absent, with a checksum; nothing is
unpickled.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headtail.errors import HeadtailError, cannot_read
from headtail.files.atomic import replace_file
from headtail.files.checksums import new_checksum, opened, sealed
from headtail.files.leftovers import remove, temporary_name
from headtail.files.regular import named_in_utf8, regular
from headtail.files.streamed import Piece, as_safetensors_orders, header_of

_NO_CHECKSUM = "0" * 32


def save_tensors(path: Path, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
    """Write tensors and facts (as JSON) atomically.

    The checksum is computed while they are written, and then put in its place.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    def write(temporary: Path) -> None:
        on_host = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
        # safetensors makes a temporary file of its own beside the one it is asked for: in a folder
        # it is swept with the folder.
        aside = temporary_name(path.with_name(f"{path.name}.folder"))
        try:
            aside.mkdir()
            with ThreadPoolExecutor(1) as beside:
                checksum = beside.submit(_checksum, on_host)
                # One entry: several are written in any order, and equal runs write equal files.
                save_file(on_host, aside / "new", {"facts": facts_entry(facts)})
            put_checksum(aside / "new", facts, checksum.result())
            (aside / "new").replace(temporary)
        except SafetensorError as error:
            raise _as_os_error(error) from error
        finally:
            remove(aside)

    replace_file(path, write)


def stream_tensors(
    path: Path,
    pieces: dict[str, Piece],
    blocks: Callable[[str], Iterable[memoryview]],
    facts: dict[str, Any],
) -> None:
    """Write the file that `save_tensors` would, byte for byte, from tensors that come block by
    block.

    Args:
        path: the file.
        pieces: the tensors' types and shapes.
        blocks: the bytes of a tensor, by its name. Names are asked for in their order, which is
            that of checksums; in the file tensors have another one.
        facts: as JSON.
    """

    def write(temporary: Path) -> None:
        begin, starts = header_of(as_safetensors_orders(pieces), {"facts": facts_entry(facts)})
        checksum = new_checksum()
        with temporary.open("wb") as file:
            file.write(begin)
            for name, piece in sorted(pieces.items(), key=lambda item: item[0]):
                file.seek(starts[name])
                checksum.update(_described(name, piece))
                for block in blocks(name):
                    file.write(block)
                    checksum.update(block)
        put_checksum(temporary, facts, checksum.hexdigest())

    replace_file(path, write)


def facts_entry(facts: dict[str, Any]) -> str:
    """What a file's header says before its checksum is known."""
    return sealed([facts, _NO_CHECKSUM])


def put_checksum(path: Path, facts: dict[str, Any], checksum: str) -> None:
    """Replace the facts in a file's header by equally long ones with the checksum."""
    before, after = (
        json.dumps(sealed([facts, value])).encode() for value in (_NO_CHECKSUM, checksum)
    )
    with path.open("r+b") as file:
        size = int.from_bytes(file.read(8), "little")
        file.seek(8 + file.read(size).index(before))
        file.write(after)


def _as_os_error(error: Exception) -> OSError:
    """A full disk, which safetensors reports in its own way."""
    number = re.search(r"os error (\d+)", str(error))
    if number is None:
        return OSError(str(error))
    return OSError(int(number[1]), os.strerror(int(number[1])))


def load_tensors(
    path: Path, what: str, advice: str, only_facts: bool = False
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and facts of a file; one that does not match its checksum is refused.

    Args:
        path: the file.
        what: it should be, for the error: "a checkpoint".
        advice: what to do if it cannot be read, in a sentence.
        only_facts: read no tensor.
    """
    from safetensors import SafetensorError, safe_open

    named_in_utf8(path)
    try:
        regular(path).open("rb").close()  # which says why a file cannot be read
        with safe_open(path, framework="pt") as file:
            if "facts" not in (metadata := file.metadata() or {}):
                raise ValueError("it was not written by headtail")
            facts, checksum = opened(metadata["facts"])
            if not isinstance(facts, dict):
                raise ValueError("its facts are not a JSON object")
            names = [] if only_facts else file.keys()
            tensors = {name: file.get_tensor(name) for name in names}
        if not only_facts and _checksum(tensors) != checksum:
            raise ValueError("its content does not match its checksum, so it is damaged")
    except OSError as error:
        if isinstance(error, FileNotFoundError | IsADirectoryError):
            raise HeadtailError(f"`{path}` cannot be read as {what}: {error}. {advice}") from error
        raise cannot_read(path, error) from error  # which says nothing of what the file holds
    except (SafetensorError, ValueError, TypeError, RecursionError) as error:
        raise HeadtailError(f"`{path}` cannot be read as {what}: {error}. {advice}") from error
    return tensors, facts


def check_content(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Compare the tensors of a file with its checksum; a file of others has none.

    A ValueError says that they do not match.
    """
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        entry = (file.metadata() or {}).get("facts")
    if entry is not None and _checksum(tensors) != opened(entry)[1]:
        raise ValueError("its content does not match its checksum, so it is damaged")


def _checksum(tensors: Mapping[str, Tensor]) -> str:
    """Of names, types, shapes and values of tensors on the host."""
    checksum = new_checksum()
    for name, tensor in sorted(tensors.items()):
        checksum.update(_described(name, tensor))
        if tensor.numel():
            checksum.update(memoryview(tensor.reshape(-1).view(torch.uint8).numpy()))  # pyright: ignore[reportArgumentType]
    return checksum.hexdigest()


def _described(name: str, tensor: Tensor | Piece) -> bytes:
    return json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode()


def as_bytes(value: Any) -> Tensor:
    """A JSON value as a tensor, for what is too large for the facts, such as names of labels.

    >>> from_bytes(as_bytes(["cat", "dog"]))
    ['cat', 'dog']
    """
    return torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)


def from_bytes(tensor: Tensor) -> Any:
    """The inverse of `as_bytes`."""
    return json.loads(tensor.numpy().tobytes())
