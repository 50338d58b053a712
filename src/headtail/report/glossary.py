"""The words of the page, in one line each."""

GLOSSARY = {
    "label": "what is predicted: a class, an item, a page; here there are very many.",
    "head, torso, tail": "the frequent, the middling and the rare labels, by their number of training examples.",
    "scheme": (
        "how negatives are drawn (sampler) and how each counts in the loss (weighting), written "
        "sampler:weighting."
    ),
    "negatives": (
        "labels that are not the right one and are pushed down; m of them are drawn a step instead "
        "of all."
    ),
    "softmax": "the exact loss over all labels; the reference, where it was trained.",
    "implicit loss": "the all-label loss that a scheme optimises on average, whether or not anyone meant it.",
    "ρ (margin)": "how strongly label y' is pushed down when y is right, relative to the plain softmax.",
    "π (prior)": "the share of the training examples that a label has.",
    "lean": (
        "log ρ(t, h) − log ρ(h, t) for a median tail label t and head label h, in nats: above 0 "
        "tail, below 0 head."
    ),
    "noise": (
        "standard deviation of the sampled loss about the implicit one for an untrained model, in "
        "nats, worst slice."
    ),
    "Recall@k": (
        "the share of (point, right label) pairs in which the label is among the point's k best "
        "answers."
    ),
    "Precision@k": "the share of the k best answers that are right.",
    "NDCG@k": (
        "like precision, but a right answer counts more the higher it stands; 1 is the best order "
        "possible."
    ),
    "PSP@k": (
        "precision in which rare labels count more, by how likely they were to be missed, as a "
        "share of the best possible."
    ),
    "coverage@k": "the share of all labels that are among the k best answers of at least one point.",
    "macro-recall@k": (
        "Recall@k of each label by itself, then the mean over labels, so that rare ones count as "
        "much as frequent."
    ),
    "error": (
        "the share of a label's test points for which another label came first; of a slice, the "
        "mean over its labels."
    ),
    "balanced error": "1 minus Recall@1 of each label by itself, then the mean over labels.",
    "class-weighted error": "the same, but in the mean each label weighs its prior π, so that frequent ones count more: the "
    "prior-weighted error.",
    "most-popular": "a baseline that always answers with the most frequent labels.",
    "error bar": (
        "with several seeds the mean ± their sample deviation; with one seed a 95% bootstrap "
        "interval over test points."
    ),
    "Pareto front": (
        "the schemes for which no other is at least as good on both head and tail and better on "
        "one."
    ),
    "Spearman's correlation": "how far two orders agree: 1 the same, 0 no relation, −1 reversed.",
    "nat": "the unit of natural logarithms: 1 nat is a factor of 2.72.",
}
