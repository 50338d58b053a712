"""Where `torch.distributed.checkpoint` puts tensors and finds them again: one safetensors file per
rank, and what is in them as JSON.

torch's own storage pickles its metadata; what is read here is never unpickled.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    LoadPlan,
    LoadPlanner,
    SavePlan,
    SavePlanner,
    WriteItem,
)
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.futures import Future

from headtail.distributed import checkpoint_folder as folders
from headtail.distributed.checkpoint_contents import Contents, Part, SavedTensor
from headtail.files.checksums import new_checksum
from headtail.files.leftovers import remove
from headtail.files.streamed import Piece, blocks_of, header_of, mapped, write_stream


@dataclass(frozen=True)
class Stored:
    """Where a part of a tensor was written.

    Attributes:
        file: its name.
        start: the first byte.
        size: of the file.
        checksum: of the file.
    """

    file: str
    start: int
    size: int
    checksum: str


class RankFiles(StorageWriter):
    """Writes the next checkpoint of a folder.

    Args:
        folder: of checkpoints, which all ranks can write to.
        rank: the number of this process.
        description: what is no tensor.
    """

    def __init__(self, folder: Path, rank: int, description: dict[str, Any]) -> None:
        self.folder = folder
        self.rank = rank
        self.description = description
        self.temporary: Path | None = None
        self.path: Path | None = None

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Nothing to do: a writer writes one checkpoint."""

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Nothing to do before all ranks are here."""

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """As it is."""
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Begin a checkpoint on the first rank, and give its name to all."""
        self.temporary, self.path = folders.begin(self.folder)
        return [replace(plan, storage_data=(self.temporary, self.path)) for plan in plans]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Write this rank's file, and wait until it is on the disk."""
        temporary, path = plan.storage_data
        self.temporary, self.path = temporary, path
        written: Future[list[WriteResult]] = Future()
        written.set_result(write_rank_file(temporary, self.rank, plan, planner))
        return written

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Make the checkpoint count, and remove old ones, on the first rank."""
        assert self.temporary is not None
        assert self.path is not None
        contents = _contents_of(metadata, results, self.description)
        folders.commit(self.temporary, self.path, contents.to_json())
        folders.remove_older(self.folder)

    def abandon(self) -> None:
        """Remove what a failed save has left."""
        if self.rank == 0 and self.temporary is not None:
            remove(self.temporary)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Whether torch may choose this storage by itself."""
        return False


def write_rank_file(
    folder: Path, rank: int, plan: SavePlan, planner: SavePlanner
) -> list[WriteResult]:
    """Write the tensors of a plan block by block; nothing is copied as a whole."""
    if not plan.items:
        return []
    pieces = {_name(item): _piece(item) for item in plan.items}
    begin, starts = header_of(pieces)
    checksum = new_checksum()
    file = f"rank-{rank}.safetensors"
    blocks = (
        block
        for item in plan.items
        for block in blocks_of(planner.resolve_data(item))  # pyright: ignore[reportArgumentType]
    )
    size = write_stream(folder / file, begin, blocks, checksum)
    return [
        WriteResult(
            item.index,
            pieces[_name(item)].size,
            Stored(file, starts[_name(item)], size, checksum.hexdigest()),
        )
        for item in plan.items
    ]


class RankFilesReader(StorageReader):
    """Reads a checkpoint where it lies: each rank only what it needs.

    Args:
        path: of the checkpoint.
        contents: what it holds.
    """

    def __init__(self, path: Path, contents: Contents) -> None:
        self.path = path
        self.contents = contents

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Nothing to do: a reader reads one checkpoint."""

    def read_metadata(self, *args: Any, **options: Any) -> Metadata:
        """As torch's planner wants it."""
        return Metadata({name: _described(t) for name, t in self.contents.tensors.items()})

    def set_up_storage_reader(
        self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any
    ) -> None:
        """Nothing to do."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """As it is."""
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """As they are."""
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Copy from files that are mapped into memory to the tensors that were asked for."""
        for item in plan.items:
            saved = self.contents.tensors[item.storage_index.fqn]
            at = tuple(item.storage_index.offset or ())
            part = next(part for part in saved.parts if part.at == at)
            piece = Piece(saved.whole.dtype, part.shape)
            source = mapped(self.path / part.file, piece, part.start)
            for axis, (start, length) in enumerate(
                zip(item.storage_offsets, item.lengths, strict=True)
            ):
                source = source.narrow(axis, start, length)
            target = planner.resolve_tensor(item).detach()
            target.copy_(source)
            planner.commit_tensor(item, target)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Whether torch may choose this storage by itself."""
        return False


def _name(item: WriteItem) -> str:
    """A name in a rank's file: that of the tensor, and where the part begins."""
    offset = item.index.offset
    at = ",".join(map(str, offset or ()))
    return f"{item.index.fqn}[{at}]" if any(offset or ()) else item.index.fqn


def _piece(item: WriteItem) -> Piece:
    data = item.tensor_data
    if data is None:
        raise TypeError(f"`{item.index.fqn}` is not a tensor")
    return Piece(data.properties.dtype, tuple(data.chunk.sizes))


def _contents_of(
    metadata: Metadata, results: list[list[WriteResult]], description: dict[str, Any]
) -> Contents:
    files = {}
    tensors: dict[str, SavedTensor] = {}
    shapes = {}
    for name, saved in metadata.state_dict_metadata.items():
        assert isinstance(saved, TensorStorageMetadata)
        tensors[name] = SavedTensor(Piece(saved.properties.dtype, tuple(saved.size)), [])
        for chunk in saved.chunks:
            shapes[name, tuple(chunk.offsets)] = tuple(chunk.sizes)
    for result in (result for of_rank in results for result in of_rank):
        stored: Stored = result.storage_data
        files[stored.file] = (stored.size, stored.checksum)
        name, at = result.index.fqn, tuple(result.index.offset or ())
        tensors[name].parts.append(Part(at, shapes[name, at], stored.file, stored.start))
    return Contents(description, files, tensors)


def _described(tensor: SavedTensor) -> TensorStorageMetadata:
    chunks = [
        ChunkStorageMetadata(torch.Size(part.at), torch.Size(part.shape)) for part in tensor.parts
    ]
    properties = TensorProperties(dtype=tensor.whole.dtype)
    return TensorStorageMetadata(properties, torch.Size(tensor.whole.shape), chunks)
