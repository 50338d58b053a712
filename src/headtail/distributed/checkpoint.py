"""Checkpoints of training on several ranks, which any number of ranks can load."""

from __future__ import annotations

import json
import warnings
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save, save
from torch.optim import Optimizer

from headtail.core.placement import Placement
from headtail.distributed.checkpoint_contents import (
    Contents,
    DamagedError,
    check_files,
    read_contents,
)
from headtail.distributed.checkpoint_folder import newest_first, set_aside
from headtail.distributed.checkpoint_grown import Grown
from headtail.distributed.checkpoint_loading import Loading, check_fits
from headtail.distributed.checkpoint_parts import RowsOfAll, Trained
from headtail.distributed.checkpoint_random import (
    random_state,
    restore_random_state,
    room_for_states,
)
from headtail.distributed.checkpoint_state import (
    check_same,
    saved_state,
    settle,
    table_of,
)
from headtail.distributed.checkpoint_storage import RankFiles, RankFilesReader
from headtail.distributed.moving import fill_rows
from headtail.distributed.sharded_head import ShardedLabelHead
from headtail.distributed.together import beside, everywhere, first_problem, number_of_first
from headtail.errors import HeadtailError
from headtail.files.checksums import DamagedWarning


class Saving:
    """A checkpoint that is being saved.

    Args:
        writer: of this rank.
        future: of a save beside training; None where it is saved already.
    """

    def __init__(self, writer: RankFiles, future: Future[Any] | None = None) -> None:
        self._writer = writer
        self._future = future
        self._told = False

    def wait(self) -> Path:
        """Wait until the checkpoint counts, and return its folder. Every rank must call it, before
        its process ends.
        """
        if self._future is not None:
            try:
                self._future.result()
            except (Exception, CheckpointException) as error:
                self._told = True
                raise _failed(self._writer, error) from error
        assert self._writer.path is not None
        return self._writer.path

    def finish(self) -> None:
        """Wait as `wait` does, but do not raise a second time what that has raised."""
        if not self._told:
            self.wait()

    def done(self) -> bool:
        """Whether `wait` would return at once."""
        return self._future is None or self._future.done()


def save_checkpoint(
    folder: str | Path,
    *,
    head: ShardedLabelHead,
    optimizer: Optimizer | None = None,
    encoder: nn.Module | None = None,
    encoder_optimizer: Optimizer | None = None,
    facts: dict[str, Any] | None = None,
    asynchronous: bool = False,
) -> Saving:
    """Save all that the next step depends on, to a new checkpoint in a folder of checkpoints.

    Every rank must call it, with the same folder, which all of them can write to. The checkpoint
    counts once it is whole and on the disk; only then is the one before the last removed. Whenever
    a process is killed, the last checkpoint that counts is untouched.

    Saving changes nothing that comes after: weight decay that rows are still due is saved as it is.

    Args:
        folder: of this run's checkpoints; made if there is none.
        head: the table, which each rank writes its rows of.
        optimizer: of the head. Parameters of the encoder may be among its own.
        encoder: the same on all ranks, perhaps in `DistributedDataParallel`, or of FSDP2.
        encoder_optimizer: of the encoder.
        facts: what else to keep, as JSON: the step, the epoch, the place in it, a schedule's state.
            Those of rank 0 are saved.
        asynchronous: copy the rank's share to host memory and return; it is written while training
            goes on. The next call waits for it. A head of some of all processes is saved at once.

    Returns:
        what to `wait()` for if it is asynchronous.
    """
    trained = Trained(head, optimizer, encoder, encoder_optimizer)
    group = beside(head.ranks)
    group.finish()
    rows = RowsOfAll(head, group)
    settle(trained)
    tensors, description = everywhere(head.ranks, lambda: _described(trained, rows, facts))
    check_same(trained, tensors, description)
    tensors |= random_state(head.ranks, head.weight.device)
    writer = RankFiles(Path(folder).absolute(), head.ranks.rank, description)
    planner = DefaultSavePlanner(False, False, dedup_save_to_lowest_rank=True)
    options: dict[str, Any] = {
        "storage_writer": writer,
        "planner": planner,
        "process_group": group.group,
    }
    if not (asynchronous and group.apart):
        try:
            save(tensors, **options)
        except (Exception, CheckpointException) as error:
            raise _failed(writer, error) from error
        return Saving(writer)
    stager = DefaultStager(StagingOptions(False, False, False, False))
    future = async_save(tensors, async_stager=stager, **options)
    assert isinstance(future, Future)
    future.add_done_callback(lambda _: stager.close())
    saving = Saving(writer, future)
    group.pending = saving.finish
    return saving


def load_checkpoint(
    folder: str | Path,
    *,
    head: ShardedLabelHead,
    optimizer: Optimizer | None = None,
    encoder: nn.Module | None = None,
    encoder_optimizer: Optimizer | None = None,
) -> dict[str, Any] | None:
    """Load the newest checkpoint of a folder, which any number of ranks may have saved.

    Every rank must call it. With as many ranks as saved it, training continues bit for bit. With
    others, table, optimiser state and queue are the same, and so is rank 0's random state, which
    decides the seeds of draws; each rank then draws from other labels.

    Files are compared with their checksums first. A damaged checkpoint is renamed and gives way to
    the one before it, with a `DamagedWarning`.

    Args:
        folder: of checkpoints.
        head: the table; its rows are read to where they are. It may have more labels than the
            checkpoint, behind the old ones: they begin as `head.grow` would let them.
        optimizer: as it was saved. Without any optimiser, random states stay as they are.
        encoder: as it was saved; leave out what is not needed.
        encoder_optimizer: as it was saved.

    Returns:
        the facts that were saved, or None if there is no checkpoint.
    """
    trained = Trained(head, optimizer, encoder, encoder_optimizer)
    group = beside(head.ranks)
    group.finish()
    found = _newest(Path(folder).absolute(), trained)
    if found is None:
        return None
    path, contents = found
    rows = RowsOfAll(head, group)
    loading, grown = everywhere(head.ranks, lambda: _to_load(path, contents, trained, rows))
    reader = RankFilesReader(path, contents)
    planner = DefaultLoadPlanner(False, False)
    try:
        load(loading.tensors, storage_reader=reader, planner=planner, process_group=group.group)
    except CheckpointException as error:
        raise HeadtailError(
            f"`{path}` cannot be loaded: {_reason(error)}. What was to be loaded is now partly old "
            "and partly new: make it again."
        ) from error
    if trained.optimizers:
        restore_random_state(loading.tensors, head.ranks, head.weight.device)
    if grown is not None:
        everywhere(head.ranks, partial(_read_by_label, path, loading, grown, head.shared_seed()))
    loading.finish()
    return contents.description["facts"]


def _described(
    trained: Trained, rows: RowsOfAll, facts: dict[str, Any] | None
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    facts = {} if facts is None else facts
    try:
        same = json.loads(json.dumps(facts)) == facts
    except (TypeError, ValueError, RecursionError):
        same = False
    if not same or not isinstance(facts, dict):
        raise HeadtailError(
            "`facts` must be a dict of JSON values, numbers, texts, lists and dicts with texts as "
            "keys, which come back as they were: put tensors into modules."
        )
    tensors, description = saved_state(trained, rows)
    return tensors, {"facts": facts, "ranks": trained.head.ranks.size, **description}


def _newest(folder: Path, trained: Trained) -> tuple[Path, Contents] | None:
    """The newest checkpoint that is whole; all ranks find the same."""
    ranks = trained.head.ranks
    listed = everywhere(ranks, lambda: newest_first(folder) if ranks.rank == 0 else [])
    damaged: list[Path] = []
    first = ""
    while True:
        left = listed[len(damaged) :]
        number = number_of_first(ranks, int(left[0].name.rpartition("-")[2]) if left else 0)
        if not number:
            break
        path = folder / f"checkpoint-{number}"
        damage, contents = everywhere(ranks, lambda path=path: _examined(path, trained))
        damage = first_problem(ranks, damage)
        if damage is None:
            assert contents is not None
            if trained.optimizers and ranks.rank == 0:  # training goes on from the older one
                for old in damaged:
                    set_aside(old)
            return path, contents
        damaged.append(path)
        first = first or f"`{path}` is damaged: {damage}"
        if ranks.rank == 0:
            warnings.warn(
                f"`{path}` is damaged: {damage}. The checkpoint before it is loaded, if there is "
                "one.",
                DamagedWarning,
                stacklevel=3,
            )
    if damaged:
        raise HeadtailError(f"{first}, and `{folder}` has no other one. Delete it to start again.")
    return None


def _examined(path: Path, trained: Trained) -> tuple[str | None, Contents | None]:
    """What is damaged in a checkpoint, as far as this rank looks, and what it holds."""
    ranks = trained.head.ranks
    if not path.exists():
        raise HeadtailError(
            f"Rank {ranks.rank} does not see `{path}`, which rank 0 does. All ranks need the same "
            "folder: on several machines, one on a file system that they share."
        )
    try:
        contents = read_contents(path)
        check_files(path, contents, ranks.rank, ranks.size)
    except DamagedError as error:
        return str(error), None
    return None, contents


def _read_by_label(path: Path, loading: Loading, grown: Grown, seed: int) -> None:
    """Give old labels their rows and new ones what `grow` would give them."""
    for name, (rows, first) in loading.by_label.items():
        rows.fill_(first)
        if name == "head.weight":
            fill_rows(rows, grown.share.start, seed)
        grown.read(path, loading.contents.tensors[name], rows)


def _to_load(
    path: Path, contents: Contents, trained: Trained, rows: RowsOfAll
) -> tuple[Loading, Grown | None]:
    """Where to load a checkpoint to, and how if its labels are fewer or placed otherwise; one that
    does not fit is refused before anything changes.
    """
    try:
        saved, own = contents.description["table"], table_of(trained)
        alike = {**saved, "labels": own["labels"]} == own
        if not alike or sum(saved["labels"]) > sum(own["labels"]):
            raise HeadtailError(
                f"`{path}` is a checkpoint of another table: it has {_in_words(saved)}, but the "
                f"head has {_in_words(own)}. Load it into a head like the one that it was saved "
                "from, which may have more labels."
            )
        grown = None
        if saved["labels"] != own["labels"]:
            grown = Grown(Placement(tuple(saved["labels"])), trained.head.share)
        loading = Loading(trained, rows if grown is None else None, contents)
        check_fits(path, loading, grown)
        if trained.optimizers:
            loading.tensors |= room_for_states(contents)
        contents.description["facts"].keys()
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise HeadtailError(
            f"`{path}` is not a checkpoint that headtail has saved: {error!r}. Delete it."
        ) from error
    return loading, grown


def _in_words(table: dict[str, Any]) -> str:
    labels = " + ".join(f"{number:,}" for number in table["labels"])
    bias = "a bias" if table["bias"] else "no bias"
    return f"{labels} labels of dimension {table['dim']} in {table['dtype']} with {bias}"


def _failed(writer: RankFiles, error: BaseException) -> BaseException:
    """The sentence for a checkpoint that could not be saved; the same on every rank."""
    writer.abandon()
    if isinstance(error, HeadtailError):
        return error
    reason = str(error).partition("\n")[0]
    if isinstance(error, CheckpointException):
        own = error.failures.get(writer.rank)
        if own is not None and not isinstance(own[0], Exception):
            return own[0]  # Ctrl-C
        reason = _reason(error)
    return HeadtailError(
        f"No checkpoint could be saved in `{writer.folder}`: {reason.rstrip('.')}. The last one is "
        "untouched."
    )


def _reason(error: CheckpointException) -> str:
    """What the first rank that failed says."""
    rank = min(error.failures)
    cause = error.failures[rank][0]
    text = cause.strerror if isinstance(cause, OSError) and cause.strerror else str(cause)
    return f"on rank {rank}, {text}"
