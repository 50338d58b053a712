"""A tour of `headtail explain` on a generated label distribution: what does sampling do to head and tail?"""

from headtail.cli import main

LABELS = ["--zipf", "10000"]

print("\n1. The schemes people use, and the losses they really optimise:\n")
main(["explain", *LABELS])

print("\n2. The default of most two-tower libraries leans to the tail, whether one wants it or not:\n")
main(["explain", "within-batch:constant", *LABELS])

print("\n3. The usual log q correction of positives and negatives leans to the head:\n")
main(["explain", "within-batch:relative", *LABELS])

print("\n4. Name the loss you want: logit adjustment. Uniform negatives are far too noisy for it, a batch's own are not:\n")
main(["explain", "uniform:tail", *LABELS])
main(["explain", "within-batch:tail", *LABELS])

print("\n5. And is a sampler's q true? Draw and see:\n")
main(["audit", "mixture(uniform,within-batch)", "--zipf", "1000", "--draws", "5000"])

print("\nNow with your own labels: .venv/bin/headtail explain --counts counts.txt   (one count a line)")
