"""Comparison of a model with the best constant prediction, row by row, with its sampling error."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from softswitch.certification.limits import clopper_pearson_upper
from softswitch.results.baseline import Usefulness

CONFIDENCE, QUANTILE = 0.95, 1.645  # one-sided confidence, and the normal quantile that belongs to it
MIN_ROWS = 20  # clients with fewer rows are not judged alone; fewer rows in total do not allow a normal approximation
MIN_GAIN = 0.01  # a rate must be below that of the constant prediction by more than this


def judge_rate(metric: str, errors: Mapping[Any, np.ndarray], **details: Any) -> Usefulness | None:
    """Judge a miss rate or false-alarm rate at the worst client; None without rows.

    The model is useful if the upper confidence limit of the worst client's rate is below 1, the rate of the best
    constant prediction. Clients with fewer than ``MIN_ROWS`` rows are ignored, or pooled if no client has that many.
    ``errors`` has, by client, whether each of the rows that the rate refers to is an error, and ``details`` further
    fields of ``Usefulness``.
    """
    known = {client: rows for client, rows in errors.items() if len(rows)}
    if not known:
        return None
    judged = {str(client): rows for client, rows in known.items() if len(rows) >= MIN_ROWS}
    small = {client: rows for client, rows in known.items() if judged and str(client) not in judged}
    ordered = sorted(small, key=lambda client: -small[client].mean())
    not_judged = tuple(f"{client} ({small[client].sum():,} of {len(small[client]):,})" for client in ordered)
    judged = judged or {"": np.concatenate(list(known.values()))}
    limits = {name: clopper_pearson_upper(rows.sum(), len(rows), 1 - CONFIDENCE) for name, rows in judged.items()}
    worst = max(judged, key=lambda name: (judged[name].mean(), limits[name]))
    upper = max(limits.values())  # of the worst client, whichever it is
    return Usefulness(
        is_useful=upper < 1 - MIN_GAIN,
        metric=metric,
        worst=float(judged[worst].mean()),
        mean=float(np.mean([rows.mean() for rows in known.values()])),
        constant=1.0,
        upper=upper,
        confidence=CONFIDENCE,
        worst_client=worst,
        errors=int(judged[worst].sum()),
        rows=len(judged[worst]),
        not_judged=not_judged,
        **details,
    )


def judge_mean(
    metric: str,
    model: Mapping[Any, np.ndarray],
    constant: Mapping[Any, np.ndarray],
    *,
    constant_is_feasible: bool = True,
    **details: Any,
) -> Usefulness | None:
    """Judge the mean over the clients of a loss or an error rate; None with fewer than ``MIN_ROWS`` rows in total.

    The model is useful if the mean paired difference to the constant exceeds its standard error significantly, or if
    no constant prediction meets the bound.

    ``model`` has, by client, the loss of each row or whether it is an error, and ``constant`` the same of the best
    constant prediction. ``details`` are further fields of ``Usefulness``.
    """
    clients = [client for client, rows in model.items() if len(rows)]
    if sum(len(model[client]) for client in clients) < MIN_ROWS:
        return None
    differences = [np.asarray(constant[client], float) - model[client] for client in clients]
    means = np.array([rows.mean() for rows in differences])
    sizes = np.array([len(rows) for rows in differences])
    # The variance is pooled: a client with few rows has no reliable one of its own.
    degrees = int(sizes.sum()) - len(sizes)
    within = sum(float(np.square(rows - rows.mean()).sum()) for rows in differences) / max(1, degrees)
    variance = within if degrees >= MIN_ROWS else float(np.concatenate(differences).var(ddof=1))
    error = math.sqrt(variance * float(np.sum(1 / sizes))) / len(sizes)
    lower = float(means.mean()) - QUANTILE * error
    values = {client: float(np.mean(model[client])) for client in clients}
    worst = max(values, key=values.__getitem__)
    mean_constant = float(np.mean([np.mean(constant[client]) for client in clients]))
    is_count = metric.endswith("_rate")
    return Usefulness(
        is_useful=lower > 0 or not constant_is_feasible,
        metric=metric,
        worst=values[worst],
        mean=float(np.mean(list(values.values()))),
        constant=mean_constant,
        upper=mean_constant - lower,
        confidence=CONFIDENCE,
        worst_client=str(worst),
        errors=int(np.sum(model[worst])) if is_count else 0,
        rows=len(model[worst]),
        constant_is_feasible=constant_is_feasible,
        **details,
    )
