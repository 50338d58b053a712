"""Bad input gets one sentence that names the argument, says what was found and what to write
instead.
"""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch

import headtail as ht
from headtail import (
    Adaptive,
    Adversarial,
    Block,
    Constant,
    CustomSeparable,
    DecoupledLoss,
    Equalised,
    Frequency,
    FromMargin,
    Given,
    HeadtailError,
    Importance,
    LabelHead,
    Labels,
    LogitAdjusted,
    LogUniform,
    Mixture,
    ModelSoftmax,
    Queue,
    Ragged,
    Relative,
    RowAdam,
    RowSGD,
    SampledSoftmaxLoss,
    Slices,
    SoftmaxLoss,
    Tail,
    Tilted,
    Uniform,
    WithinBatch,
    audit,
    clip_grad_norm_,
    explain,
    scheme,
)
from headtail.functional import (
    contrastive,
    decoupled_loss,
    hinge,
    sampled_decoupled_loss,
    sampled_softmax_loss,
    softmax_loss,
    two_tower_softmax_loss,
)
from headtail.implicit import optimal_q
from headtail.samplers import Draw, every_label

LABELS = Labels.zipf(10)
HIDDEN = torch.randn(3, 4)
TABLE = torch.randn(10, 4)
TARGET = torch.tensor([1, 2, 3])
DRAW = Uniform(10, 5).draw(TARGET)
NAN = float("nan")


def sampled(**changes):
    given = {
        "input": HIDDEN,
        "weight": TABLE,
        "target": TARGET,
        "draw": DRAW,
        "weighting": Importance(),
        **changes,
    }
    return sampled_softmax_loss(**given)


CASES = {
    # Labels and slices
    "NaN counts": (lambda: Labels.from_counts([1.0, NAN]), "`counts`"),
    "infinite counts": (lambda: Labels.from_counts([1.0, float("inf")]), "`counts`"),
    "negative counts": (lambda: Labels.from_counts([3, -1]), "label 1 has -1"),
    "no counts": (lambda: Labels.from_counts([]), "`counts`"),
    "a matrix of counts": (lambda: Labels.from_counts([[1, 2]]), "shape [L]"),
    "words for counts": (lambda: Labels.from_counts("abc"), "`counts`"),
    "all counts zero": (lambda: Labels.from_counts([0, 0]), "all zero"),
    "bool counts": (lambda: Labels.from_counts([True, False]), "torch.bool"),
    "negative smoothing": (lambda: Labels.from_counts([1], smoothing=-1), "`smoothing`"),
    "target beyond num_labels": (
        lambda: Labels.from_targets(torch.tensor([5]), num_labels=3),
        "0 to 2, but got 5",
    ),
    "negative target": (lambda: Labels.from_targets(torch.tensor([-7]), num_labels=3), "got -7"),
    "float targets": (lambda: Labels.from_targets(torch.tensor([1.0])), "integer label ids"),
    "a dictionary as targets": (lambda: Labels.from_targets({0: 1}), "Ragged.from_lists"),
    "strings as targets": (lambda: Labels.from_targets(["a"]), "`Labels.from_column`"),
    "floats as targets": (lambda: Labels.from_targets([0.5]), "holds float"),
    "a missing target": (lambda: Labels.from_targets([1, None]), "no value in row 1"),
    "a list of targets for positions": (
        lambda: LabelHead(LABELS, 4, SoftmaxLoss())(torch.zeros(2, 3, 4), [1, 2]),
        "got a list",
    ),
    "targets of four axes": (
        lambda: Labels.from_targets(torch.zeros(2, 2, 2, 2).long()),
        "[2, 2, 2, 2]",
    ),
    "ragged offsets that fall": (
        lambda: Labels.from_targets(Ragged(torch.tensor([1, 2]), torch.tensor([0, 2, 1, 2]))),
        "offsets",
    ),
    "ragged offsets too short": (
        lambda: Labels.from_targets(Ragged(torch.tensor([1, 2]), torch.tensor([0, 1]))),
        "offsets",
    ),
    "thresholds crossed": (lambda: Slices.by_count(LABELS.counts, head=10, tail=20), "`head`"),
    "shares above one": (lambda: LABELS.slices_by_mass(0.8, 0.8), "at most 1"),
    "an id out of range": (lambda: LABELS.log_prior(torch.tensor([10])), "0 to 9, but got 10"),
    # samplers
    "no negatives": (lambda: Uniform(10, 0), "`num_negatives`"),
    "half a negative": (lambda: Uniform(10, 2.5), "2.5"),
    "no labels": (lambda: Uniform(0, 5), "`num_labels`"),
    "more than all labels without replacement": (
        lambda: Uniform(10, 11, replacement=False),
        "num_negatives=10",
    ),
    "excluded without replacement": (
        lambda: Uniform(10, 3, replacement=False, exclude_target=True),
        "exclude_target",
    ),
    "excluding the only label": (lambda: Uniform(1, 3, exclude_target=True), "only 1 label"),
    "excluding the only seen label": (
        lambda: Frequency(Labels.from_counts([4, 0]), 3, exclude_target=True),
        "at least 2",
    ),
    "power above one": (lambda: Frequency(LABELS, 3, power=1.5), "between 0 and 1"),
    "NaN power": (lambda: Frequency(LABELS, 3, power=NAN), "finite"),
    "counts instead of labels": (lambda: Frequency([1, 2], 3), "Labels.from_counts"),
    "counts instead of labels within batch": (lambda: WithinBatch([1, 2]), "Labels.from_counts"),
    "more than all seen labels without replacement": (
        lambda: Frequency(Labels.from_counts([4, 1, 0]), 3, replacement=False),
        "only 2 labels",
    ),
    "target beyond the sampler": (lambda: LogUniform(10, 3).draw(torch.tensor([10])), "got 10"),
    "queue smaller than its draw": (lambda: Queue(LABELS, 3, 5), "Raise `capacity`"),
    "empty mixture": (lambda: Mixture([]), "at least one sampler"),
    "mixture of different sizes": (lambda: Mixture([Uniform(10, 2), Uniform(11, 2)]), "[10, 11]"),
    "mixture with an excluded part": (
        lambda: Mixture([Uniform(10, 2, exclude_target=True)]),
        "drop `exclude_target=True`",
    ),
    "given with the wrong shape": (lambda: Given(10, torch.tensor([1, 2]), torch.zeros(3)), "[2]"),
    "given with NaN": (lambda: Given(10, torch.tensor([1]), torch.tensor([NAN])), "NaN"),
    "given beyond the labels": (lambda: Given(3, torch.tensor([3]), torch.zeros(1)), "got 3"),
    "given for another batch": (
        lambda: Given(10, torch.tensor([[1], [2]]), torch.zeros(2, 1)).draw(TARGET),
        "3 targets",
    ),
    "given asked for another label": (
        lambda: Given(10, torch.tensor([1]), torch.zeros(1)).log_q(TARGET),
        "as a function",
    ),
    "relative without the positive's q": (
        lambda: sampled(
            draw=Given(10, torch.tensor([1]), torch.zeros(1)).draw(TARGET), weighting=Relative()
        ),
        "log_q_target",
    ),
    "counts instead of labels in blocks": (
        lambda: Block(LABELS.counts, 3),
        "`labels` must be Labels or their number, but got Tensor",
    ),
    "counts instead of labels by score": (lambda: ModelSoftmax([1, 2], 3), "Labels.from_counts"),
    "counts instead of labels in a tree": (lambda: Adversarial([1, 2], 3), "Labels.from_counts"),
    "counts instead of labels, uniform": (lambda: Uniform([1, 2], 3), "Labels.from_counts"),
    "counts instead of labels, log-uniform": (lambda: LogUniform([1, 2], 3), "Labels.from_counts"),
    "a weighting as the margin of blocks": (
        lambda: Block(LABELS, 3, margin=Tail(LABELS)),
        "Write `Tail(…).margin`.",
    ),
    "a weighting as the margin of a tilt": (
        lambda: Tilted(LABELS, 3, Tail(LABELS)),
        "Write `Tail(…).margin`.",
    ),
    "blocks for a margin of another size": (
        lambda: Block(LABELS, 3, margin=LogitAdjusted(Labels.zipf(4))),
        f"`margin` has 4 labels, but the sampler {LABELS.num_labels}. Make them equal.",
    ),
    "within-batch without a batch size": (
        lambda: WithinBatch(LABELS).expected_m(),
        "batch_size=256",
    ),
    "a draw of mixed shapes": (
        lambda: Draw(torch.tensor([1]), torch.zeros(2).double(), None, 1.0),
        "[1] and [2]",
    ),
    # margins and weightings
    "tail without a positive prior": (
        lambda: Tail(Labels.from_counts([1, 0, 0])),
        "2 of 3 have none",
    ),
    "logit adjustment without a positive prior": (
        lambda: LogitAdjusted(Labels.from_counts([1, 0])),
        "smoothing=1",
    ),
    "adaptive without a positive prior": (
        lambda: Adaptive(Labels.from_counts([1, 0])),
        "smoothing=1",
    ),
    "NaN strength": (lambda: Tail(LABELS, NAN), "`strength`"),
    "a transform below zero": (
        lambda: Equalised(LABELS, lambda p: p - 1).log_negative(TARGET),
        "`transform`",
    ),
    "custom margins of two lengths": (lambda: CustomSeparable([0.0], [0.0, 1.0]), "1 labels but"),
    "custom margins with NaN": (lambda: CustomSeparable([NAN], [0.0]), "`positive`"),
    "no support": (
        lambda: SampledSoftmaxLoss(Frequency(Labels.from_counts([1, 0]), 3), Importance()),
        "never draws 1 of 2",
    ),
    # losses
    "input of the wrong width": (lambda: sampled(input=torch.randn(3, 5)), "[10, 4] and [3, 5]"),
    "input of the wrong length": (lambda: sampled(input=torch.randn(4, 4)), "b = 3 targets"),
    "integer input": (
        lambda: sampled(input=torch.ones(3, 4).long(), weight=TABLE.long()),
        "floating point",
    ),
    "weight of another dtype": (lambda: sampled(weight=TABLE.double()), "torch.float64"),
    "flat weight": (lambda: sampled(weight=torch.randn(4)), "[L, d]"),
    "bias of another length": (lambda: sampled(bias=torch.zeros(9)), "[10]"),
    "target out of range": (lambda: sampled(target=torch.tensor([1, 2, 10])), "0 to 9, but got 10"),
    "target that is negative": (lambda: sampled(target=torch.tensor([1, 2, -1])), "got -1"),
    "float target": (lambda: sampled(target=torch.tensor([1.0, 2.0, 3.0])), "`target.long()`"),
    "no target": (lambda: sampled(target=None), "NoneType"),
    "temperature zero": (lambda: sampled(temperature=0.0), "`temperature`"),
    "an unknown score": (lambda: sampled(score="cosinus"), "'dot', 'cosine'"),
    "an unknown reduction": (lambda: sampled(reduction="avg"), "'mean', 'sum', 'none'"),
    "unknown collisions": (lambda: sampled(collisions="all"), "'target', 'known', 'none'"),
    "known positives that are kept": (
        lambda: sampled(known_positives=TARGET[:, None], collisions="none"),
        "Drop one",
    ),
    "known positives of another batch": (
        lambda: sampled(known_positives=torch.tensor([[1]])),
        "1 examples",
    ),
    "known positives nowhere to be found": (
        lambda: sampled(collisions="known"),
        "`known_positives`",
    ),
    "weights of another batch": (lambda: sampled(sample_weight=torch.ones(2)), "`sample_weight`"),
    "smoothing above one": (lambda: sampled(label_smoothing=1.5), "`label_smoothing`"),
    "a target too many for the exact loss": (
        lambda: softmax_loss(HIDDEN, TABLE, torch.tensor([1])),
        "b = 1",
    ),
    "a contrastive loss of dot products": (
        lambda: decoupled_loss(HIDDEN, TABLE, TARGET, piece=contrastive()),
        'score="cosine"',
    ),
    "a contrastive margin of two": (lambda: contrastive(2.0), "`margin`"),
    "decoupled, target out of range": (
        lambda: sampled_decoupled_loss(HIDDEN, TABLE, torch.tensor([1, 2, 99]), DRAW, Constant()),
        "got 99",
    ),
    "two towers of different widths": (
        lambda: two_tower_softmax_loss(
            HIDDEN, torch.randn(3, 5), torch.randn(5, 4), TARGET, DRAW, Constant()
        ),
        "`positive`",
    ),
    "two towers with too few negatives": (
        lambda: two_tower_softmax_loss(HIDDEN, HIDDEN, torch.randn(4, 4), TARGET, DRAW, Constant()),
        "each drawn id, shape [5, 4], but got [4, 4]",
    ),
    "two towers with shared embeddings for rows of ids": (
        lambda: two_tower_softmax_loss(
            HIDDEN,
            HIDDEN,
            torch.randn(5, 4),
            TARGET,
            Uniform(10, 5, exclude_target=True).draw(TARGET),
            Constant(),
        ),
        "each drawn id, shape [3, 5, 4]",
    ),
    "two towers with an axis too many": (
        lambda: two_tower_softmax_loss(
            HIDDEN, HIDDEN[:, None], HIDDEN, TARGET, WithinBatch(LABELS).draw(TARGET), Constant()
        ),
        "`positive` must have shape [3, 4]",
    ),
    "two towers with lists": (
        lambda: two_tower_softmax_loss(HIDDEN, HIDDEN, [[1.0]], TARGET, DRAW, Constant()),
        "`negatives`",
    ),
    "two towers smoothed without L": (
        lambda: two_tower_softmax_loss(
            HIDDEN, HIDDEN, torch.randn(5, 4), TARGET, DRAW, Constant(), label_smoothing=0.1
        ),
        "`num_labels`",
    ),
    "a loss without a sampler": (
        lambda: SampledSoftmaxLoss("uniform", Importance()),
        "`sampler` must be a Sampler, but got 'uniform'",
    ),
    "a draw for another batch": (
        lambda: sampled(draw=Uniform(10, 5, exclude_target=True).draw(TARGET[:2])),
        "made for 2 targets",
    ),
    "a draw for one": (
        lambda: sampled(draw=Uniform(10, 5).draw(TARGET[:1]), weighting=Relative()),
        "made for 1 targets",
    ),
    "a sampler instead of a draw": (lambda: sampled(draw=Uniform(10, 5)), "sampler.draw(target)"),
    "a draw beyond the table": (lambda: sampled(draw=Uniform(99, 50).draw(TARGET)), "0 to 9"),
    "the class of a weighting": (
        lambda: sampled(weighting=Importance),
        "the class Importance itself",
    ),
    "the name of a weighting": (lambda: sampled(weighting="importance"), "'importance'"),
    "a list of hidden states": (lambda: sampled(input=[[1.0]]), "`input` must be a Tensor"),
    "a list of biases": (lambda: sampled(bias=[0.0]), "`bias` must be a Tensor"),
    "a list of example weights": (
        lambda: sampled(sample_weight=[1.0]),
        "`sample_weight` must be a Tensor",
    ),
    "negative example weights": (lambda: sampled(sample_weight=-torch.ones(3)), "at least 0"),
    "temperature in words": (lambda: sampled(temperature="cold"), "'cold'"),
    "an option that no loss has": (lambda: sampled(temprature=0.5), "Did you mean `temperature`?"),
    "label smoothing of a hinge": (
        lambda: DecoupledLoss(piece=hinge, label_smoothing=0.1),
        "`label_smoothing` is not an option",
    ),
    "a piece by name": (lambda: DecoupledLoss(piece="hinge"), "contrastive()"),
    "a piece that was not called": (
        lambda: decoupled_loss(HIDDEN, TABLE, TARGET, piece=contrastive),
        "`piece` must be a Piece",
    ),
    "a margin by name": (lambda: SoftmaxLoss("logit-adjusted"), "LogitAdjusted(labels)"),
    "a weighting as a margin": (lambda: FromMargin(Tail(LABELS)), "`margin` must be a Margin"),
    "a weighting as an exact loss's margin": (
        lambda: softmax_loss(HIDDEN, TABLE, TARGET, Tail(LABELS)),
        "Tail is a weighting",
    ),
    "counts instead of labels in a margin": (lambda: Tail([1, 2]), "Labels.from_counts"),
    "labels of another size": (lambda: SampledSoftmaxLoss(Uniform(9, 2), Tail(LABELS)), "9 labels"),
    "a custom margin of another size": (
        lambda: SampledSoftmaxLoss(
            Uniform(9, 2), FromMargin(CustomSeparable([0.0] * 10, [0.0] * 10))
        ),
        "9 labels",
    ),
    "probabilities for log-probabilities": (
        lambda: Given(10, torch.tensor([1]), torch.tensor([0.3])),
        "q.log()",
    ),
    "negatives that are fewer than none": (
        lambda: Given(10, torch.tensor([1]), torch.zeros(1), m=-3),
        "`m`",
    ),
    "negatives that are none": (lambda: Given(10, torch.tensor([1]), torch.zeros(1), m=0), "`m`"),
    "NaN example weights": (
        lambda: sampled(sample_weight=torch.full((3,), NAN)),
        "`sample_weight`",
    ),
    "a matrix of zeros and ones as targets": (
        lambda: sampled(target=torch.ones(3, 10, dtype=torch.int64)),
        "target.bool()",
    ),
    "a strided nested target": (
        lambda: sampled(target=torch.nested.nested_tensor([TARGET])),
        "layout=torch.jagged",
    ),
    "a numpy target": (lambda: sampled(target=TARGET.numpy()), "torch.as_tensor"),
    "a matrix of zeros and ones as ids": (
        lambda: Labels.from_targets(torch.eye(4).long()),
        "target.bool()",
    ),
    "a multi-hot matrix of another width": (
        lambda: sampled(target=torch.ones(3, 9, dtype=torch.bool)),
        "9 columns",
    ),
    "counts that grow into a matrix": (lambda: LABELS.grow([[1]]), "one number per new label"),
    "an id beyond a uniform sampler": (lambda: Uniform(10, 2).log_q(torch.tensor([10])), "got 10"),
    "every one of no labels": (lambda: every_label(0), "`num_labels`"),
    # head and optimisers
    "growing by a list": (
        lambda: LabelHead(LABELS, 4, SoftmaxLoss()).grow([3, 1]),
        "Labels.from_counts",
    ),
    "growing with a name": (
        lambda: LabelHead(LABELS, 4, SoftmaxLoss()).grow(Labels.zipf(11), loss="softmax"),
        "`loss` must be",
    ),
    "growing a custom margin": (
        lambda: LabelHead(LABELS, 4, SoftmaxLoss(CustomSeparable([0.0] * 10, [0.0] * 10))).grow(
            Labels.zipf(11)
        ),
        "head.grow(labels, loss=…)",
    ),
    "half-precision questions": (
        lambda: LabelHead(LABELS, 4, SoftmaxLoss()).topk(HIDDEN.half(), 1),
        "torch.float16",
    ),
    "one beta": (lambda: RowAdam([torch.nn.Parameter(TABLE)], betas=0.9), "two numbers"),
    "a beta of one": (
        lambda: RowAdam([torch.nn.Parameter(TABLE)], betas=(0.9, 1.0)),
        "two numbers",
    ),
    "a head without a loss": (lambda: LabelHead(LABELS, 4, "softmax"), "`loss` must be a Loss"),
    "a head of another size": (
        lambda: LabelHead(LABELS, 4, SampledSoftmaxLoss(Uniform(9, 2), Importance())),
        "9 labels",
    ),
    "a head of no width": (lambda: LabelHead(LABELS, 0, SoftmaxLoss()), "`dim`"),
    "top 11 of 10": (
        lambda: LabelHead(LABELS, 4, SoftmaxLoss()).topk(HIDDEN, 11),
        "only 10 labels",
    ),
    "top 0": (lambda: LabelHead(LABELS, 4, SoftmaxLoss()).topk(HIDDEN, 0), "`k`"),
    "excluded labels of other examples": (
        lambda: LabelHead(LABELS, 4, SoftmaxLoss()).topk(HIDDEN, 1, exclude=[[0]]),
        "`exclude` has 1 rows, but `hidden`",
    ),
    "an excluded label that does not exist": (
        lambda: LabelHead(LABELS, 4, SoftmaxLoss()).topk(HIDDEN, 1, exclude=[[10]] * len(HIDDEN)),
        "`exclude` must hold label ids from 0 to 9, but got 10",
    ),
    "excluded labels without a list for each example": (
        lambda: LabelHead(LABELS, 4, SoftmaxLoss()).topk(HIDDEN, 1, exclude=[3, 5]),  # type: ignore[list-item]
        "exclude=[[3, 5], []]",
    ),
    "hidden of another width": (
        lambda: LabelHead(LABELS, 4, SoftmaxLoss()).topk(torch.randn(3, 5), 1),
        "[b, 4]",
    ),
    "a head that shrinks": (
        lambda: LabelHead(LABELS, 4, SoftmaxLoss()).grow(Labels.zipf(9)),
        "added, not removed",
    ),
    "negative learning rate": (lambda: RowSGD([torch.nn.Parameter(TABLE)], lr=-1.0), "`lr`"),
    "beta above one": (lambda: RowAdam([torch.nn.Parameter(TABLE)], betas=(2.0, 0.9)), "`betas`"),
    "NaN norm": (lambda: clip_grad_norm_([], NAN), "`max_norm`"),
    # explain and audit
    "a misspelt scheme": (lambda: scheme("unifrom:tail", LABELS), "Did you mean `uniform`"),
    "scores without targets": (
        lambda: explain(SoftmaxLoss(), LABELS, scores=torch.zeros(1, 10)),
        "`target`",
    ),
    "scores of another size": (
        lambda: explain(SoftmaxLoss(), LABELS, scores=torch.zeros(1, 9), target=TARGET[:1]),
        "[1, 10]",
    ),
    "NaN scores": (
        lambda: explain(SoftmaxLoss(), LABELS, scores=torch.full((1, 10), NAN), target=TARGET[:1]),
        "`scores`",
    ),
    "noise of zero": (lambda: explain(SoftmaxLoss(), LABELS, noise=0.0), "`noise`"),
    "explaining a name": (lambda: explain("within-batch:tail", LABELS), "scheme("),
    "explaining without labels": (lambda: explain(SoftmaxLoss(), [3, 1]), "Labels.from_counts"),
    "explaining other labels": (
        lambda: explain(scheme("uniform:tail", LABELS), Labels.zipf(9)),
        "Pass the same",
    ),
    "explaining a batch of one": (
        lambda: explain(scheme("within-batch:tail", LABELS), LABELS, batch_size=1),
        "at least 2",
    ),
    "explaining fixed negatives": (
        lambda: explain(
            SampledSoftmaxLoss(Given(10, torch.tensor([1]), torch.zeros(1)), Constant()), LABELS
        ),
        "as a function",
    ),
    "q* of a label that is not there": (
        lambda: optimal_q(ht.Unit(), 10, torch.zeros(10)),
        "got 10",
    ),
    "a scheme that is no name": (lambda: scheme(None, LABELS), "`text`"),
    "auditing a loss": (
        lambda: audit(scheme("uniform:tail", LABELS), LABELS),
        "audit(loss.sampler, labels)",
    ),
    "auditing fixed negatives": (
        lambda: audit(Given(10, TARGET, torch.zeros(3)), LABELS),
        "cannot be audited",
    ),
    "auditing with too few draws": (lambda: audit(Uniform(10, 2), LABELS, draws=5), "too few"),
    "auditing an empty draw": (
        lambda: audit(lambda: TARGET[:0], log_q=torch.full((4,), 0.25).log()),
        "no ids",
    ),
    "auditing a target that is not there": (
        lambda: audit(Uniform(10, 2), LABELS, target=10),
        "got 10",
    ),
    "audit without labels": (lambda: audit(Uniform(10, 2)), "`labels`"),
    "audit of a function without a claim": (lambda: audit(lambda: TARGET), "`log_q`"),
    "audit of nothing": (lambda: audit(3), "int"),
    "audit of a claim that sums to two": (
        lambda: audit(lambda: TARGET, log_q=torch.zeros(2)),
        "sums to 2",
    ),
    "audit of no draws": (lambda: audit(Uniform(10, 2), LABELS, draws=0), "`draws`"),
}


@pytest.fixture(autouse=True)
def _unchecked(request):
    if request.config.getoption("--shapes"):
        pytest.skip("shape checks would speak before headtail does")


@pytest.mark.parametrize(("call", "fragment"), CASES.values(), ids=CASES)
def test_bad_input_gets_a_sentence(call, fragment):
    with pytest.raises(HeadtailError) as caught:
        call()
    sentence = str(caught.value)
    assert fragment in sentence
    assert sentence.endswith((".", "?"))
    assert "\n" not in sentence
    assert "`" in sentence, "the argument is named as it is written"


@pytest.mark.parametrize(
    ("changes", "fragment"),
    [
        ({"input": torch.zeros(3, 4, device="meta")}, "`weight` is on cpu but `input` is on meta"),
        ({"bias": torch.zeros(10, device="meta")}, "`bias` is on meta but `input` is on cpu"),
        ({"sample_weight": torch.zeros(3, device="meta")}, "`sample_weight` is on meta"),
        ({"target": torch.zeros(3, dtype=torch.int64, device="meta")}, "is on meta"),
    ],
    ids=["input", "bias", "sample_weight", "target"],
)
def test_tensors_on_another_device_get_a_sentence(changes, fragment):
    with pytest.raises(HeadtailError, match=re.escape(fragment)):
        sampled(**changes)


def test_numpy_numbers_are_numbers():
    assert Uniform(np.int64(10), np.int32(3)).num_negatives == 3
    assert Tail(LABELS, np.float32(0.5)).margin.strength == 0.5


def test_one_exception_serves_all():
    assert issubclass(ht.HeadtailError, ValueError)
    assert FromMargin(ht.Unit()) == FromMargin(ht.Unit())
