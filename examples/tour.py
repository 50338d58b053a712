"""A tour of `headtail explain` on generated labels: what does sampling do to head and tail?"""

from headtail.cli import main

LABELS = ["--zipf", "10000"]

print("\n1. Common schemes, and the losses they optimise:\n")
main(["explain", *LABELS])

print("\n2. InfoNCE, the usual loss with in-batch negatives, leans to the tail:\n")
main(["explain", "within-batch:infonce", *LABELS])

print("\n3. Subtracting log q from positives and negatives leans to the head:\n")
main(["explain", "within-batch:relative", *LABELS])

print("\n4. Name the loss you want, here logit adjustment, and choose a sampler for it:\n")
main(["explain", "uniform:tail", *LABELS])
main(["explain", "within-batch:tail", *LABELS])

print("\n5. Does a sampler draw from the q it reports? Test it:\n")
main(["audit", "mixture(uniform,within-batch)", "--zipf", "1000", "--draws", "5000"])

print(
    "\nFor your own labels: .venv/bin/headtail explain --counts counts.txt   (one count per line)"
)
