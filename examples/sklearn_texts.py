"""scikit-learn: texts with many labels in a pipeline, and a search over schemes.

pip install 'headtail[sklearn]'
python examples/sklearn_texts.py
"""

import numpy as np
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.pipeline import make_pipeline

from headtail.integrations.sklearn import HeadtailClassifier

# Texts of four words, one of which names the label; few labels are frequent.
random = np.random.default_rng(0)
labels = (30 * random.random(1500) ** 3).astype(int)
words = random.integers(1000, 1300, (1500, 3))
rows = np.column_stack([labels, words])
texts = [" ".join(f"w{word}" for word in row) for row in rows]
texts, later, labels, answers = train_test_split(texts, labels, random_state=0)

model = make_pipeline(
    TfidfVectorizer(),
    HeadtailClassifier("within-batch:tail", dim=32, epochs=20, random_state=0),
)
model.fit(texts, labels)
print(f"accuracy {model.score(later, answers):.2f}")
print("best three", model[-1].predict_topk(model[:-1].transform(later[:2]), 3).tolist())

grid = {"headtailclassifier__scheme": ["softmax", "within-batch:importance", "within-batch:tail"]}
search = GridSearchCV(model, grid, cv=2, scoring="balanced_accuracy").fit(texts, labels)
print(f"best by balanced accuracy: {search.best_params_} {search.best_score_:.2f}")
