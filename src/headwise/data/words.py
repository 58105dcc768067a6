"""A classical text classifier: logistic regression on their words and pairs of words (tf-idf).

For pairs of texts the features are those of each text, of what they share and of what they do not, and a few numbers
that say how much the two overlap. Strength of regularisation and weights of classes are chosen on validation.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from headwise.data.tables import Examples
from headwise.extras import extra

STRENGTHS = (1.0, 3.0, 0.3, 10.0, 0.1, 30.0, 0.03)  # of equally good ones the first, the usual one, is taken


def predict_by_words(
    train: Examples,
    validation: Examples,
    test: Examples,
    error: Callable[[Any, Any], float],
    *,
    scores: bool = False,
) -> Any:
    """Predictions for the test part: classes, or numbers with `scores`; `error(labels, predictions)` chooses."""
    with extra("baselines", "baselines"):
        from sklearn.linear_model import LogisticRegression, Ridge

    features = _Features(train)
    known, chosen_on, asked = features(train), features(validation), features(test)
    if scores:
        candidates: list[Any] = [Ridge(alpha=1 / strength) for strength in STRENGTHS]
    else:
        weights = (None, "balanced")
        solver = "liblinear" if len(np.unique(train.labels)) == 2 else "lbfgs"  # the first is faster, for two classes
        candidates = [
            LogisticRegression(C=strength, class_weight=weight, solver=solver, max_iter=1000)
            for strength in STRENGTHS
            for weight in weights
        ]
    for model in candidates:
        model.fit(known, train.labels)
    best = min(candidates, key=lambda model: error(validation.labels, model.predict(chosen_on)))
    return best.predict(asked)


class _Features:
    def __init__(self, train: Examples) -> None:
        with extra("baselines", "baselines"):
            from sklearn.feature_extraction.text import TfidfVectorizer

        # one letter words and signs are words too
        self.words = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, token_pattern=r"\w+|[^\w\s]")
        self.words.fit(train.texts)

    def __call__(self, examples: Examples) -> Any:
        with extra("baselines", "baselines"):
            from scipy.sparse import csr_matrix, hstack

        table = self.words.transform(examples.texts)
        first = table[examples.pairs[:, 0]]
        if examples.pairs.shape[1] == 1:
            return first
        second = table[examples.pairs[:, 1]]
        both = first.multiply(second)
        return hstack([first, second, both, abs(first - second), csr_matrix(_overlap(first, second, both))], "csr")


def _overlap(first: Any, second: Any, both: Any) -> Any:
    """(examples, 4): cosine, words in common as a part of the first, the second and of either."""
    cosine = np.asarray(both.sum(1)).ravel()
    shared, one, other = ((matrix != 0).sum(1) for matrix in (both, first, second))
    shared, one, other = (np.asarray(count).ravel() for count in (shared, one, other))
    parts = [shared / np.maximum(count, 1) for count in (one, other, one + other - shared)]
    return np.stack([cosine, *parts], axis=1)
