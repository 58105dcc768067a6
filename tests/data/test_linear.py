"""The linear classifier against scikit-learn's ridge regression on the same features."""

import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import Ridge
from sklearn.preprocessing import StandardScaler

from headwise.data.linear import PENALTIES, error_by_least_squares


def test_it_is_ridge_regression_with_the_penalty_that_validation_chooses():
    """Of scikit-learn's digits, some of whose pixels never change."""
    pixels, labels = load_digits(return_X_y=True)
    parts = {"train": slice(0, 400), "validation": slice(400, 900), "test": slice(900, None)}

    def rows(part, batch=128):
        x, y = pixels[parts[part]], labels[parts[part]]
        return ((x[at : at + batch], y[at : at + batch]) for at in range(0, len(x), batch))

    scaler = StandardScaler().fit(pixels[parts["train"]])
    x = {part: scaler.transform(pixels[which]) for part, which in parts.items()}
    errors = []
    for penalty in PENALTIES:
        model = Ridge(alpha=penalty * 400).fit(x["train"], np.eye(10)[labels[parts["train"]]])
        errors.append([(model.predict(x[p]).argmax(1) != labels[parts[p]]).mean() for p in ("validation", "test")])
    found = error_by_least_squares(rows, 10)
    assert found == min(errors, key=lambda pair: pair[0])[1]
    assert 0.05 < found < 0.2
