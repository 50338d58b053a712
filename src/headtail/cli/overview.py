"""The commands by job, with an example of each.

This page and `--version` import neither torch nor any command, so that they are there at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any

TITLE = "What does negative sampling do to your frequent and your rare labels?"


@dataclass(frozen=True)
class Command:
    """A command before it is imported.

    Attributes:
        place: its module in this room, and its class there.
        summary: what it does, in a line.
        example: a line to type.
    """

    place: str
    summary: str
    example: str

    def load(self) -> Any:
        """The class whose fields are the options of the command."""
        module, _, name = self.place.partition(".")
        return getattr(import_module(f"headtail.cli.{module}"), name)


JOBS = {
    "Compare and train": {
        "compare": Command(
            "compare.Compare",
            "Train a model per scheme: which labels gain, which lose?",
            "headtail compare my-data --seeds 3 --out results",
        ),
        "report": Command(
            "report.Report",
            "Print the table of a comparison and write its report again.",
            "headtail report results",
        ),
        "train": Command(
            "train.Train",
            "Train and test one model.",
            "headtail train my-data --scheme within-batch:tail --out run",
        ),
    },
    "Use a trained model": {
        "predict": Command(
            "predict.Predict",
            "Write the best labels of every row of a file.",
            "headtail predict run new-rows.txt --out best.csv",
        ),
        "evaluate": Command(
            "evaluate.Evaluate",
            "Measure a model on head, torso and tail.",
            "headtail evaluate run my-data",
        ),
        "export": Command(
            "export.Export",
            "Write a search index of the labels, or the model as one program.",
            "headtail export run --to faiss --out index",
        ),
    },
    "Understand a scheme before training": {
        "explain": Command(
            "explain.Explain",
            "What does a scheme really optimise, and where does it lean?",
            "headtail explain within-batch:tail --data my-data",
        ),
        "audit": Command(
            "audit.Audit",
            "Does a sampler draw what it claims?",
            "headtail audit 'mixture(uniform,within-batch)' --zipf 1000",
        ),
        "advise": Command(
            "advise.Advise",
            "All labels or sampled? Scheme, negatives and batch for your time.",
            "headtail advise --data my-data --target logit-adjusted --minutes 30",
        ),
    },
    "Look at the data and the machine": {
        "stats": Command(
            "stats.Stats",
            "Sizes, imbalance, head, torso and tail of some data.",
            "headtail stats my-data",
        ),
        "bench": Command(
            "bench.Bench",
            "How long does a training step take on this machine?",
            "headtail bench --quick",
        ),
        "doctor": Command(
            "doctor.Doctor",
            "Is everything installed, and does it work?",
            "headtail doctor",
        ),
    },
}
COMMANDS = {name: command for commands in JOBS.values() for name, command in commands.items()}


def overview() -> str:
    """What `headtail` and `headtail --help` show."""
    lines = [f"headtail: {TITLE}", "", "usage: headtail COMMAND …", ""]
    for job, commands in JOBS.items():
        lines += [job, *(f"  {name:9} {about.summary}" for name, about in commands.items()), ""]
    return "\n".join(
        [
            *lines,
            "`headtail COMMAND --help` lists the options of a command, with an example.",
            "`headtail --version` prints the version; --debug shows tracebacks of errors.",
            "",
            "To begin: headtail compare synthetic --epochs 2",
            "",
        ]
    )
