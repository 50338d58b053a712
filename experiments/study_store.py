"""The finished runs of a study, in small files.

A run leaves three files in FOLDER/runs, named after everything that decides its results: `.csv`
(rows: curve and test metrics by slice), `.npz` (ranks of right labels, see `rank_files.py`) and
`.json` (settings, time, held-out loss). The last is written last: a run that has it is finished and
never run again, so studies resume, share runs, and keep rows as they come.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rank_files import Frame

from headtail.comparison.results import Row, read_rows
from headtail.files.atomic import write_text

RETRAINED = "softmax+retrained"
"""The scheme whose classifier is trained again (`retrained.py`)."""


@dataclass(frozen=True)
class Done:
    """A finished run: its `.json`.

    Attributes:
        name: of its files.
        scheme: as typed; `softmax+post-hoc(0.5)` for adjusted answers.
        seed: of the run.
        lr: learning rate at its highest.
        epochs: over which it decays.
        best_epoch: the one that was kept; 0 where the run diverged.
        last_epoch: the last that was trained.
        loss: lowest held-out implicit loss; inf where it diverged, nan where nothing was held out.
        seconds: of training and measuring, with other runs beside it.
    """

    name: str
    scheme: str
    seed: int
    lr: float
    epochs: int
    best_epoch: int
    last_epoch: int
    loss: float
    seconds: float


@dataclass(frozen=True)
class Store:
    """The runs of one data set, in a folder."""

    folder: Path

    def path(self, name: str, ending: str) -> Path:
        """A file of a run."""
        return self.folder / "runs" / f"{name}{ending}"

    def find(self, name: str) -> Done | None:
        """A run, if it is finished."""
        path = self.path(name, ".json")
        return Done(**json.loads(path.read_text(encoding="utf-8"))) if path.exists() else None

    def all(self) -> list[Done]:
        """All finished runs."""
        names = sorted(path.stem for path in (self.folder / "runs").glob("*.json"))
        return [done for name in names if (done := self.find(name)) is not None]

    def finish(self, done: Done) -> Done:
        """Write a run's last file."""
        write_text(self.path(done.name, ".json"), json.dumps(asdict(done)))
        return done

    def drop_ranks(self, name: str) -> None:
        """Delete the ranks of a run and of its adjusted answers."""
        for path in (self.folder / "runs").glob("*.npz"):
            if path.stem == name or path.stem.startswith(f"{name}-post-hoc"):
                path.unlink()

    def search_path(self, scheme: str) -> Path:
        """What was chosen for a scheme."""
        return self.folder / "searches" / f"{slug(scheme)}.json"

    def searches(self) -> list[dict[str, Any]]:
        """What was chosen for all schemes that are finished."""
        paths = sorted((self.folder / "searches").glob("*.json"))
        return [json.loads(path.read_text(encoding="utf-8")) for path in paths]

    def frame(self) -> Frame:
        """The test pairs behind the ranks."""
        return Frame.read(self.folder / "frame.npz")

    def rows(self, name: str) -> list[Row]:
        """The rows of a run; none where it diverged."""
        path = self.path(name, ".csv")
        return read_rows(path) if path.exists() else []


def adjusted_scheme(scheme: str, tau: float) -> str:
    """The name of a scheme whose answers are adjusted with τ.

    >>> adjusted_scheme("softmax", 0.5)
    'softmax+post-hoc(0.5)'
    """
    return f"{scheme}+post-hoc({tau:g})"


def adjusted_name(name: str, tau: float) -> str:
    """The name of the files of such answers."""
    return f"{name}-post-hoc{tau:g}"


def retrained_name(name: str) -> str:
    """The name of the files of a softmax model whose classifier was trained again."""
    return f"{name}-retrained"


def slug(text: str) -> str:
    """A file name for a scheme."""
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-")
