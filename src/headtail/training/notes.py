"""What a user should know before training: the data and the settings together."""

from __future__ import annotations

from collections.abc import Sequence

from headtail.core.slices import NAMES
from headtail.data.points import DataSet
from headtail.data.slices import SliceRule, data_slices
from headtail.errors import Sentence, Setting
from headtail.schemes import parse
from headtail.training.config import Run, Training
from headtail.training.held_out import split_validation
from headtail.training.recipes import RECIPES, note_on_defaults, with_defaults

FEW_NEGATIVES = 256
"""Up to this number, other parts of a step take longer than the negatives."""
LONG = 1e14
"""Operations that take one core about an hour."""


def notes_on(
    data: DataSet, training: Training, schemes: Sequence[str], slices: SliceRule = "auto"
) -> list[str]:
    """Sentences about settings that the data decide, held-out points, settings that were not made
    for images, and an empty head.

    Args:
        data: the data set.
        training: how it will be trained.
        schemes: what will be trained.
        slices: how labels are divided into head, torso and tail.
    """
    chosen = note_on_defaults(training, schemes, data)
    notes: list[str] = [] if chosen is None else [chosen]
    held_out = split_validation(data, training.validation).held_out
    if data.validation is None and held_out is not None:
        what = "points are" if data.test.seen is None else "users have one item"
        notes.append(
            Sentence(
                f"{len(held_out):,} of the {len(data.train):,} training {what} held out to "
                "choose the epoch; with ",
                Setting("validation", 0),
                " all are trained on.",
            )
        )
    for_text = (training.optimiser, training.lr) == (Training().optimiser, None)
    if data.train.image_size is not None and for_text:
        recipes = ", ".join(f"`{name}`" for name in RECIPES)
        notes.append(
            Sentence(
                "Optimiser and learning rate are those for text; those for images come with a ",
                Setting("recipe"),
                f": {recipes}.",
            )
        )
    if not bool((data_slices(data, slices).of_label == NAMES.index("head")).any()):
        notes.append(
            Sentence(
                "No label has 100 training examples, so the head is empty; ",
                Setting("slices", "mass"),
                " divides labels by their share.",
            )
        )
    return notes


def warnings_on(
    schemes: Sequence[str], training: Training, data: DataSet, device: str
) -> list[str]:
    """What will take much longer than it should, before it does."""
    notes = [needless_negatives(schemes, training, data)]
    notes += [slow_on_cpu(schemes, training, data)] if device == "cpu" else []
    return [note for note in notes if note is not None]


def needless_negatives(schemes: Sequence[str], training: Training, data: DataSet) -> str | None:
    """A note where more negatives are drawn than there are labels: the loss over all labels costs
    less, and has no noise.
    """
    labels = data.train.num_labels
    runs = [with_defaults(Run.of(training, name), data) for name in schemes]
    drawn = {run.scheme: parse(run.scheme).negatives(run.negatives, run.batch) for run in runs}
    most = {
        name: m for name, m in drawn.items() if m is not None and m > max(labels, FEW_NEGATIVES)
    }
    if not most:
        return None
    m = max(most.values())
    draw = "draws" if len(most) == 1 else "draw"
    return Sentence(
        f"{' and '.join(most)} {draw} up to {m:,.0f} negatives for {labels:,} labels: a step "
        f"scores about {m / labels:,.0f} times as many labels as a loss over all of them does, "
        "such as `softmax`, which has no noise. Write ",
        Setting("negatives", max(1, labels // 4)),
        " or fewer, or a loss over all labels.",
    )


def slow_on_cpu(schemes: Sequence[str], training: Training, data: DataSet) -> str | None:
    """A note where losses over all labels will take a CPU long: about an hour of one core."""
    exact = [name for name in schemes if parse(name).sampler is None]
    if not exact:
        return None
    points = data.train.num_pairs if training.batching == "pairs" else len(data.train)
    # a multiplication and an addition, forward and twice backward
    operations = 6.0 * training.dim * data.train.num_labels * points
    epochs = with_defaults(Run.of(training, exact[0]), data).epochs
    if operations * epochs < LONG:
        return None
    score = "scores" if len(exact) == 1 else "score"
    return Sentence(
        f"{' and '.join(exact)} {score} all {data.train.num_labels:,} labels for each of "
        f"{points:,} points: {operations:.0e} operations per epoch, which takes a CPU long. Use a "
        "GPU, or leave them out of ",
        Setting("schemes"),
        ".",
    )
