"""Fairlearn's exponentiated gradient, the clients as its control feature: for gaps between groups only.

What is noted are the scores of all rows: the mean of its models' probabilities by their weights.
"""

from __future__ import annotations

import warnings

import numpy as np
from fairlearn.reductions import DemographicParity, ExponentiatedGradient, TruePositiveRateParity
from scipy import special
from sklearn.linear_model import LogisticRegression

from benchmarks.tables.cases import CASES, Case
from models_noted import CaseFile, Trace, solve


def method(case_file: CaseFile, trace: Trace) -> None:
    """Its answer, which is the only model to note."""
    case: Case = next(one for one in CASES if one.name == case_file.name)
    columns, client = case.columns()
    gap = {"demographic-parity": DemographicParity, "equal-opportunity": TruePositiveRateParity}[case.kind]
    trace.begin("")
    # It bounds each group's distance from all rows together: two groups may then be twice as far apart.
    bounded = gap(difference_bound=case.tolerance / 2)
    fair = ExponentiatedGradient(LogisticRegression(C=1e6, max_iter=1000), bounded, max_iter=30)
    x = columns["x"].astype(float)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fair.fit(x, columns["y"], sensitive_features=columns["group"], control_features=client)
    used = [(fair.predictors_[index], weight) for index, weight in fair.weights_.items() if weight > 0]
    trace.note(
        lambda: special.logit(
            np.clip(sum(weight * model.predict_proba(x)[:, 1] for model, weight in used), 1e-12, 1 - 1e-12)
        )
    )


if __name__ == "__main__":
    solve(method)
