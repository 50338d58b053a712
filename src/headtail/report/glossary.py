"""The terms of the page, one line each."""

GLOSSARY = {
    "label": "what is predicted: a class, an item, a page. Here there are very many.",
    "head, torso, tail": (
        "the frequent, the medium and the rare labels, by their number of training examples."
    ),
    "scheme": (
        "how negatives are drawn (sampler) and weighted in the loss (weighting), written "
        "sampler:weighting."
    ),
    "negatives": (
        "labels other than the right one, which are pushed down; m of them are drawn per step, "
        "instead of using all."
    ),
    "softmax": "the exact loss over all labels; the reference if it was trained.",
    "implicit loss": (
        "the loss over all labels that a scheme optimises on average, intended or not."
    ),
    "ρ (margin)": (
        "how strongly label y' is pushed down when y is right, relative to the plain softmax."
    ),
    "π (prior)": "the share of the training examples that have a label.",
    "lean": (
        "log ρ(t, h) − log ρ(h, t) for a median tail label t and a median head label h, in nats: "
        "above 0 it favours the tail, below 0 the head."
    ),
    "untrained noise": (
        "standard deviation of the sampled loss around the implicit loss while all scores are "
        "equal, in nats, in the worst slice. A trained model's is usually far larger, so it does "
        "not show how many negatives are enough."
    ),
    "Recall@k": (
        "the share of (point, right label) pairs for which the label is among the best k answers."
    ),
    "Precision@k": "the share of the best k answers that are right.",
    "NDCG@k": (
        "like precision, but a right answer counts more the higher it is ranked; 1 is the best "
        "possible order."
    ),
    "HitRate@k": "the share of points with at least one right label among the best k answers.",
    "MRR@k": (
        "mean reciprocal rank: 1 divided by the rank of a point's first right answer, 0 where it "
        "is not among the best k; the mean over points."
    ),
    "filtered MRR, filtered Hits@k": (
        "each right answer is ranked with the point's other known right answers removed; the mean "
        "over right answers of 1/rank, or the share of ranks up to k. Equal scores get their mean "
        "rank."
    ),
    "PSP@k": (
        "propensity-scored precision: rare labels count more, because they are more likely to be "
        "missing from the data; as a share of the best possible."
    ),
    "coverage@k": (
        "the share of all labels that are among the best k answers for at least one point."
    ),
    "popularity@k": (
        "the mean popularity of the best k answers: the share of training points that have a label."
    ),
    "popularity lift": (
        "popularity bias: how much more popular the best k answers are than the right labels of "
        "the same points. 0% is as popular, 100% twice as popular; below 0% less popular."
    ),
    "macro-recall@k": (
        "Recall@k of each label, then the mean over labels: rare labels count as much as frequent "
        "ones."
    ),
    "error": (
        "the share of a label's test points for which another label was ranked first; for a slice, "
        "the mean over its labels."
    ),
    "balanced error": "1 minus Recall@1 of each label, then the mean over labels.",
    "class-weighted error": (
        "the same, but in the mean each label is weighted by its prior π, so that frequent labels "
        "count more: the prior-weighted error."
    ),
    "most-popular": "a baseline that always answers with the most frequent labels.",
    "error bar": (
        "with several seeds, the mean ± their sample deviation; with one seed, a 95% bootstrap "
        "interval over test points."
    ),
    "Pareto front": (
        "the schemes that no other scheme beats on both head and tail: none is at least as good on "
        "both and better on one."
    ),
    "Spearman's correlation": (
        "how far two orders agree: 1 for the same order, 0 for no relation, −1 for the reverse."
    ),
    "nat": "the unit of natural logarithms: 1 nat is a factor of 2.72.",
}
