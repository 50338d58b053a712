"""The best model as checkpoints know it.

The best model is replaced as soon as there is a better one, and the checkpoint that knows of it
comes later. What goes on from a checkpoint before that may never find the better one again: on
another number of ranks, or on GPUs, an epoch that is repeated ends differently. So the model that
checkpoint N knows is kept as `model-N` beside the checkpoints, until N is removed. Checkpoint M
knows the `model-N` of the smallest N from M on; where there is none, the model itself.
"""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

from headtail.distributed.checkpoint_folder import newest_first
from headtail.files.atomic import keep, sync
from headtail.files.leftovers import remove

_NAME = re.compile(r"^model-(?P<number>\d{1,18})\.safetensors$")


def keep_model(model: Path, checkpoints: Path) -> None:
    """Keep a model that is about to be replaced, if the newest checkpoint knows it.

    It has both names meanwhile; on a file system where a file has one name only, it loses its own.
    """
    numbers = _numbers(checkpoints)
    if not numbers or not model.exists():
        return
    name = _named(checkpoints, numbers[0])
    if not name.exists():
        keep(model, name)
    if not name.exists():
        model.replace(name)
    sync(checkpoints)


def restore_model(model: Path, checkpoints: Path) -> None:
    """Let the model be that of the newest checkpoint, from which a run goes on."""
    numbers = _numbers(checkpoints)
    newest = numbers[0] if numbers else 0
    later = sorted(number for number in _kept(checkpoints) if number >= newest)
    # The last first: whenever this is interrupted, the right one is still the first.
    for number in reversed(later[1:] if numbers else later):
        remove(_named(checkpoints, number))
    if numbers and later:
        name = _named(checkpoints, later[0])
        name.replace(model)
        sync(model.parent)
        remove(name)  # which is left if both are the same file


def forget_models(checkpoints: Path) -> None:
    """Remove what only checkpoints that are gone have known; if that fails, leave it."""
    with suppress(OSError):
        oldest = min(_numbers(checkpoints), default=0)
        for number in _kept(checkpoints):
            if number < oldest:
                remove(_named(checkpoints, number))


def _numbers(checkpoints: Path) -> list[int]:
    """Of the checkpoints that count, the newest first."""
    return [int(path.name.rpartition("-")[2]) for path in newest_first(checkpoints)]


def _kept(checkpoints: Path) -> list[int]:
    """Of the models that are kept."""
    if not checkpoints.is_dir():
        return []
    names = map(_NAME.match, (path.name for path in checkpoints.iterdir()))
    return [int(name["number"]) for name in names if name is not None]


def _named(checkpoints: Path, number: int) -> Path:
    return checkpoints / f"model-{number}.safetensors"
