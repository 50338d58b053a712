"""The trained models of a comparison, by scheme and seed."""

from __future__ import annotations

from pathlib import Path

from headtail.errors import HeadtailError, Setting, check_exists, nearest
from headtail.files.checksums import SUMS, check_sums
from headtail.training.config import Run
from headtail.training.saved_model import MODEL_FILE

AGAIN = "The same comparison again repairs it."


def model_folder(folder: Path, scheme: str | None = None, seed: int | None = None) -> Path:
    """The folder of a trained model: a run's own folder, or that of a run in a comparison.

    Args:
        folder: of a run, or of a comparison.
        scheme: which model of the comparison; may be left out where it has one.
        seed: of the run; the lowest there is by default.
    """
    check_exists(folder, " Pass the folder of a run or a comparison.")
    if (folder / MODEL_FILE).exists() or not (folder / "cells").is_dir():
        _check_single(folder, scheme, seed)
        return folder
    runs = {
        path.parent: _run_of(path.parent)
        for path in sorted(folder.glob(f"cells/*/{MODEL_FILE}"))
        if (path.parent / SUMS).exists()  # else it is not finished
    }
    schemes = list(dict.fromkeys(run.scheme for run in runs.values()))
    if not schemes:
        raise HeadtailError(f"`{folder}` is a comparison without a finished run. Run it again.")
    if scheme is None and len(schemes) == 1:
        scheme = schemes[0]
    if scheme not in schemes:
        start = f"`{folder}` holds a comparison. Choose a scheme with "
        if scheme is not None:
            start = f"`{folder}` has no model of `{scheme}`.{nearest(scheme, schemes)} Choose with "
        raise HeadtailError(start, Setting("scheme"), f": {', '.join(schemes)}.")
    by_seed = {run.seed: path for path, run in runs.items() if run.scheme == scheme}
    seed = min(by_seed) if seed is None else seed
    if seed not in by_seed:
        there = ", ".join(map(str, sorted(by_seed)))
        raise HeadtailError(
            f"`{folder}` has no model of `{scheme}` with ",
            Setting("seed", seed),
            f". There are: {there}.",
        )
    check_sums(by_seed[seed], AGAIN)
    return by_seed[seed]


def _run_of(cell: Path) -> Run:
    try:
        return Run.read(cell / "run.toml")
    except HeadtailError:
        check_sums(cell, AGAIN)
        raise


def _check_single(folder: Path, scheme: str | None, seed: int | None) -> None:
    """Refuse a choice where there is none."""
    settings = folder / "run.toml"
    if (scheme, seed) == (None, None) or not settings.exists():
        return
    run = Run.read(settings)
    if scheme not in (None, run.scheme) or seed not in (None, run.seed):
        raise HeadtailError(
            f"`{folder}` is a single run, of `{run.scheme}` with seed {run.seed}. Leave ",
            Setting("scheme"),
            " and ",
            Setting("seed"),
            " out.",
        )
