"""Which way to take training steps: the fastest that data, model and device allow."""

from __future__ import annotations

import warnings

import torch

from headtail.data.image_files import ImageFiles
from headtail.data.sequence_batches import SequenceBatches
from headtail.device.graphs import forget_capture
from headtail.encoders import Bottleneck, SequenceEncoder
from headtail.rows.row_optimizer import RowOptimizer
from headtail.training.captured import REPLAYED, CapturedStep
from headtail.training.checkpoint import remembering
from headtail.training.eager import EagerStep
from headtail.training.engine import Engine
from headtail.training.resident import Resident, ResidentStep, is_gathered, resident_size
from headtail.training.resident_sequences import ResidentSequences, sequences_size
from headtail.training.sharded_step import ShardedStep
from headtail.training.step import Learner, TrainingStep
from headtail.training.streamed import StreamedStep


def choose_step(learner: Learner, engine: Engine) -> TrainingStep:
    """Streamed for image files, eager on a CPU and where ranks share the model; on a GPU resident,
    and captured if possible.

    A warning of one line says why where a GPU cannot do the best.
    """
    if learner.model.ranks is not None:
        return ShardedStep(learner)
    if isinstance(learner.batches.points.features, ImageFiles):
        return StreamedStep(learner)
    if learner.device.type != "cuda":
        return EagerStep(learner)
    resident = _resident(learner, engine)
    if resident is None:
        return EagerStep(learner)
    if not engine.capture or _needs_host(learner):
        return ResidentStep(learner, resident)
    random = torch.cuda.get_rng_state(learner.device)
    try:
        return CapturedStep(learner, resident)
    except RuntimeError as error:
        forget_capture(learner.device, random)
        reason = str(error).partition("\n")[0]
        warnings.warn(
            f"This step cannot be captured as a CUDA graph ({reason}), so it runs eagerly.",
            stacklevel=2,
        )
        return ResidentStep(learner, resident)


def _resident(learner: Learner, engine: Engine) -> Resident | ResidentSequences | None:
    """The data on the GPU, as far as it fits there; None if it does not."""
    batches = learner.batches
    room = engine.share_of_memory * torch.cuda.mem_get_info(learner.device)[0]
    if isinstance(batches, SequenceBatches):
        if sequences_size(batches) > room:
            _warn_of_copies()
            return None
        return ResidentSequences(batches, learner.device, learner.run.epochs)
    size = resident_size(batches.points, batches.whole_points, engine.dense_below)
    fits = size.features + size.rest <= room
    if not fits:
        gathered = is_gathered(batches.points, engine.dense_below)
        if size.rest > room or not (gathered and _encoder_is_sparse(learner)):
            _warn_of_copies()
            return None
        warnings.warn(
            "The features do not fit on the GPU next to the model, so it reads them from the "
            "host's memory.",
            stacklevel=3,
        )
    return Resident(batches, learner.device, dense_below=engine.dense_below, pinned=not fits)


def _warn_of_copies() -> None:
    warnings.warn(
        "The data set does not fit on the GPU next to the model, so each step copies its own "
        "features there.",
        stacklevel=4,
    )


def _needs_host(learner: Learner) -> bool:
    """Whether a step needs the host: for pending decay, for rows that are summed before clipping,
    for a sampler of your own that remembers, or for a search for known positives.
    """
    model = learner.model
    lazy_decay = learner.run.weight_decay > 0 and isinstance(learner.optimiser, RowOptimizer)
    clips_rows = learner.run.clip > 0 and (model.head.sparse or _encoder_is_sparse(learner))
    memories = [module for _, module in remembering(model)]
    remembers = any(not isinstance(module, REPLAYED) for module in memories)
    return lazy_decay or clips_rows or remembers or model.mask_known


def _encoder_is_sparse(learner: Learner) -> bool:
    encoder = learner.model.encoder
    return isinstance(encoder, Bottleneck | SequenceEncoder) and encoder.sparse
