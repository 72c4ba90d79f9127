"""Metrics of a model at each client on held-out rows, and what follows from them: usefulness, calibration, overfitting.

The metrics are plain estimates, without confidence limits. A metric is NaN at a client without rows that it applies to.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from scipy.special import expit
from scipy.stats import rankdata

from softswitch.certification.limits import clopper_pearson_upper
from softswitch.data.client_data import ClientData
from softswitch.problem.choices import BINARY, MULTICLASS, NUMBER
from softswitch.problem.networks import Network, apply_network, row_loss
from softswitch.results.baseline import (
    CONSTANT,
    FALSE_ALARMS,
    UNCONSTRAINED_WORST,
    Usefulness,
    compare_with_trivial,
    find_baseline,
)
from softswitch.results.certificate import Certificate, Verdict
from softswitch.results.diagnostics import diagnose_overfitting
from softswitch.results.result import Result
from softswitch.results.status import Diagnostic, StatusCode
from softswitch.results.status import DiagnosticCode as Code
from softswitch.support.text import join_first
from softswitch.tables.constraints import KINDS, number_loss
from softswitch.tables.labels import BinaryLabel, Label, NumberLabel, predict_codes
from softswitch.tables.preparation import PreparedTable
from softswitch.tables.settings import Config, TaskSection, replace_auto

ERROR_KINDS = ("error-rate", "class-miss-rate")  # kinds whose usefulness is judged by the share of wrong rows
JUDGED = (Code.NO_BETTER_THAN_CONSTANT, Code.NO_BETTER_THAN_START, Code.OVERFITTED)  # replaced by ``assess_model``
MAX_CURVES = 50  # with more clients, only the reliability curve of all rows is kept
CONFIDENCE, QUANTILE = 0.95, 1.645  # one-sided confidence, and the normal quantile that belongs to it
MIN_ROWS = 20  # clients with fewer rows are not judged alone; fewer rows in total do not allow a normal approximation
MIN_GAIN = 0.01  # a rate must be below that of the constant prediction by more than this
MIN_EVENTS = 10  # fewest rows of either class for a recalibration
MIN_BIN_ROWS, MAX_BINS = 10, 10  # of a reliability curve
Metric = Callable[[np.ndarray, np.ndarray], float]  # of each row's y and score (rows × classes if several)


def auc(y: np.ndarray, score: np.ndarray) -> float:
    """Return the area under the ROC curve, for y of 0 and 1; NaN without rows of both classes."""
    ranks, count = rankdata(score)[y == 1], int(np.sum(y == 1))
    pairs = count * (len(y) - count)
    return float((ranks.sum() - count * (count + 1) / 2) / pairs) if pairs else math.nan


def worst_class_recall(y: np.ndarray, score: np.ndarray) -> float:
    """Return the smallest recall of any class with rows, for scores of rows × classes; NaN without rows."""
    correct = score.argmax(axis=1) == y
    return min((_mean(correct[y == label]) for label in np.unique(y)), default=math.nan)


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if len(values) else math.nan


METRICS: dict[str, dict[str, Metric]] = {  # by label type and name
    BINARY: {
        "miss_rate": lambda y, score: _mean(score[y == 1] <= 0),
        "false_alarm_rate": lambda y, score: _mean(score[y != 1] > 0),
        "auc": auc,
    },
    NUMBER: {"mean_absolute_error": lambda y, score: _mean(np.abs(score - y))},
    MULTICLASS: {
        "error_rate": lambda y, score: _mean(score.argmax(axis=1) != y),
        "worst_class_recall": worst_class_recall,
    },
}
BASELINES = {"constant": CONSTANT, "unconstrained": UNCONSTRAINED_WORST}  # by the prefix of their metrics' columns


def client_metrics(table: PreparedTable, result: Result, threshold: float | None = None) -> dict[str, list[float]]:
    """Return columns of clients.csv by name, one value per client: numbers of rows, and metrics on held-out rows.

    There is a column ``{model}_{metric}`` for every model and metric; a client without held-out rows has NaN.
    """
    names, held_out, label = table.train.names, table.held_out, table.label
    columns: dict[str, list[float]] = {"rows": table.train.sizes.tolist()}
    for name, part in (("rows_to_choose_by", table.validation), ("rows_held_out", held_out)):
        if part is not None:
            sizes = dict(zip(part.names, part.sizes.tolist(), strict=True))
            columns[name] = [sizes.get(client, 0) for client in names]
    if held_out is None:
        return columns
    baselines = {prefix: find_baseline(name, result.baselines) for prefix, name in BASELINES.items()}
    models = {"held_out": result.params} | {key: one.params for key, one in baselines.items() if one is not None}
    y, rows = np.asarray(held_out.rows.columns["y"]), client_rows(held_out)
    parts = [rows.get(name, slice(0)) for name in names]
    if isinstance(label, BinaryLabel):
        log_odds = predict_log_odds(result.params, held_out, threshold)
        fits = [fit_recalibration(y[part], log_odds[part]) for part in parts]
        columns["positives_held_out"] = [int(np.sum(y[part] == 1)) for part in parts]
        columns["expected_events"] = [float(expit(log_odds[part]).sum()) for part in parts]
        columns["calibration_slope"] = [slope for _, slope in fits]
        columns["calibration_intercept"] = [intercept for intercept, _ in fits]
    y = label.mean + label.scale * y if isinstance(label, NumberLabel) else y
    for model, params in models.items():
        if params is None:
            continue
        outputs = predict_outputs(params, held_out)
        score = label.decode(outputs) if label.type == NUMBER else outputs[:, 0] if label.type == BINARY else outputs
        for metric, function in METRICS[label.type].items():
            columns[f"{model}_{metric}"] = [function(y[part], score[part]) for part in parts]
    return columns


def client_rows(data: ClientData) -> dict[Any, slice]:
    """Return the rows of each client by its label."""
    ends = np.cumsum(data.sizes).tolist()
    return {name: slice(end - size, end) for name, size, end in zip(data.names, data.sizes.tolist(), ends, strict=True)}


def predict_outputs(params: Network, data: ClientData) -> np.ndarray:
    """Return the outputs of a network for all rows, rows × outputs."""
    return np.asarray(apply_network(params, jnp.asarray(data.rows.columns["x"])))


def predict_log_odds(params: Network, data: ClientData, threshold: float | None = None) -> np.ndarray:
    """Return the log odds of the positive class for all rows.

    ``threshold`` is that of a score, which is the first feature; thresholds of single clients do not change log odds.
    """
    if threshold is None:
        return predict_outputs(params, data)[:, 0].astype(float)
    (layer,), score = params, np.asarray(data.rows.columns["x"], dtype=float)[:, 0]
    return np.asarray(score * float(layer["w"][0, 0]) + float(layer["b"][0]) + threshold)


@dataclass(frozen=True, eq=False)
class Assessment:
    """What held-out rows show about a model, in addition to its certificate."""

    result: Result  # with the diagnostics that follow
    columns: dict[str, list[float]]  # of clients.csv, as of ``client_metrics``
    usefulness: Usefulness | None  # the comparison with the best constant; None without rows to compare on
    about: dict[str, Any]  # entries of run.json: usefulness, reliability curves and the names of the classes


def assess_model(
    config: Config,
    table: PreparedTable,
    result: Result,
    certificate: Certificate | None = None,
    threshold: float | None = None,
) -> Assessment:
    """Compute metrics, usefulness and calibration of a model on held-out rows; diagnose violations and overfitting.

    Without held-out rows the model is compared with the constant on its training rows, and nothing else is computed.
    ``threshold`` is that of a score, as log odds.
    """
    task, label, held_out = config.task, table.label, table.held_out
    rows = table.train if held_out is None else held_out
    options: dict[str, Any] = {"name": config.data.label, "is_held_out": held_out is not None}
    usefulness = judge_usefulness(task, label, result, rows, **options)
    about: dict[str, Any] = {"usefulness": usefulness and usefulness.to_dict()}
    new = diagnose_answer(task, result, certificate, usefulness)
    if isinstance(label, BinaryLabel):
        about["classes"] = {side: f"{config.data.label} = {getattr(label, side)}" for side in ("negative", "positive")}
    if held_out is not None:
        training, others = (row_errors(task, label, data, result.params) for data in (table.train, held_out))
        for metric in training:
            bound = task.bound if metric == KINDS[task.kind].description.constraint else None
            new += diagnose_overfitting(metric, training[metric], others[metric], bound=bound)
        if isinstance(label, BinaryLabel):
            about["reliability"] = reliability_curves(held_out, result.params, threshold)
    kept = [one for one in result.diagnostics if one.code not in JUDGED]
    result = replace(result, diagnostics=(*kept, *new))
    return Assessment(result, client_metrics(table, result, threshold), usefulness, about)


def diagnose_answer(
    task: TaskSection, result: Result, certificate: Certificate | None, usefulness: Usefulness | None
) -> list[Diagnostic]:
    """Diagnose clients that are above the bound on training rows and not certified, and a constant that is as good."""
    diagnostics = compare_with_trivial(result.as_baseline, result.baselines, usefulness)
    clients = () if certificate is None else certificate.clients
    certified = {client.client for client in clients if client.verdict is Verdict.MEETS}
    above = [name for name in result.violating if name not in certified]
    if not above or result.status.code is not StatusCode.VIOLATED:
        return diagnostics
    write = KINDS[task.kind].description.write
    rates = dict(zip(result.names, map(write, result.client_constraint.max(axis=1).tolist()), strict=True))
    count = f"{len(above):,} of {len(rates):,} clients {'is' if len(above) == 1 else 'are'}"
    listed = join_first([f"{name!r} ({rates[name]})" for name in above])
    evidence = f"{count} above the bound {write(task.bound)} on training rows, and not certified: {listed}"
    advice = "They likely violate it on new data: check their rows, add features or rows, or raise the bound"
    return [Diagnostic(Code.VIOLATING_CLIENTS, evidence, advice), *diagnostics]


def fit_recalibration(y: np.ndarray, log_odds: np.ndarray) -> tuple[float, float]:
    """Return intercept and slope of the logistic regression of y on the predicted log odds.

    A calibrated model has intercept 0 and slope 1; a slope below 1 means that predictions are too extreme. Both are
    NaN with fewer than ``MIN_EVENTS`` rows of either class, or if there is no finite estimate.
    """
    from sklearn.linear_model import LogisticRegression

    positive, x = np.asarray(y) == 1, np.asarray(log_odds, dtype=float)
    events, others = x[positive], x[~positive]
    if min(len(events), len(others)) < MIN_EVENTS or not np.isfinite(x).all():
        return math.nan, math.nan
    if events.min() >= others.max() or others.min() >= events.max():  # separated: the slope is infinite
        return math.nan, math.nan
    center, spread = float(x.mean()), float(x.std())
    model = LogisticRegression(C=np.inf, tol=1e-8, max_iter=1000).fit(((x - center) / spread)[:, None], positive)
    slope = float(model.coef_[0, 0]) / spread
    return float(model.intercept_[0]) - slope * center, slope


def reliability_curve(y: np.ndarray, probability: np.ndarray) -> list[dict[str, Any]]:
    """Return up to ``MAX_BINS`` bins of equally many rows, in the order of the predicted probability.

    A bin has the mean predicted probability ("predicted"), the share of positive rows ("observed"), the exact 95%
    limits of that share ("lower", "upper") and the number of rows ("rows").
    """
    order, positive = np.argsort(probability, kind="stable"), np.asarray(y) == 1
    bins = min(MAX_BINS, max(1, len(order) // MIN_BIN_ROWS))
    curve = []
    for rows in np.array_split(order, bins) if len(order) else ():
        count, total = int(positive[rows].sum()), len(rows)
        curve.append(
            {
                "predicted": float(np.mean(probability[rows])),
                "observed": count / total,
                "lower": 1 - clopper_pearson_upper(total - count, total, 0.025),
                "upper": clopper_pearson_upper(count, total, 0.025),
                "rows": total,
            }
        )
    return curve


def reliability_curves(data: ClientData, params: Network, threshold: float | None) -> dict[str, Any]:
    """Return the reliability curve of all rows ("all") and of each client ("clients"), if there are not too many."""
    y, probability = np.asarray(data.rows.columns["y"]), expit(predict_log_odds(params, data, threshold))
    shown = client_rows(data) if len(data) <= MAX_CURVES else {}
    curves = {str(name): reliability_curve(y[part], probability[part]) for name, part in shown.items()}
    return {"all": reliability_curve(y, probability), "clients": curves}


def row_errors(task: TaskSection, label: Label, data: ClientData, params: Network) -> dict[str, dict[Any, np.ndarray]]:
    """Return the metrics on which training and held-out rows are compared: by name and client, the value of each row.

    They are the miss rate and the false-alarm rate for a constraint on one of them, else the error rate if the
    constraint is one, else the loss.
    """
    parts, y, outputs = client_rows(data), np.asarray(data.rows.columns["y"]), predict_outputs(params, data)
    if KINDS[task.kind].description.cost is not None:
        positive = outputs[:, 0] > 0
        missed = {name: ~positive[part][y[part] == 1] for name, part in parts.items()}
        return {"miss rate": missed, "false-alarm rate": {n: positive[p][y[p] != 1] for n, p in parts.items()}}
    is_error = task.kind in ERROR_KINDS
    values = wrong_rows(y, outputs) if is_error else row_losses(task, label, y, outputs)
    return {"error rate" if is_error else "loss": {name: values[part] for name, part in parts.items()}}


def wrong_rows(y: np.ndarray, outputs: np.ndarray) -> np.ndarray:
    """Return which rows are classified wrongly by the outputs, rows × outputs."""
    return np.asarray(predict_codes(outputs) != y)


def row_losses(task: TaskSection, label: Label, y: np.ndarray, outputs: np.ndarray) -> np.ndarray:
    """Return the loss of each row: the log loss of two classes, or the loss of a number in the label's unit."""
    if not isinstance(label, NumberLabel):
        return np.logaddexp(0, np.where(y == 1, -1, 1) * outputs[:, 0].astype(float))
    loss, quantile = number_loss(task.kind, replace_auto(task.loss), replace_auto(task.quantile), task.bound)
    return np.asarray(row_loss(loss, quantile)(jnp.asarray(label.errors(outputs, y))))


def judge_rate(metric: str, errors: Mapping[Any, np.ndarray], **details: Any) -> Usefulness | None:
    """Judge a miss rate or false-alarm rate at the worst client; None without rows.

    The model is useful if the upper confidence limit of the worst client's rate is below 1, the rate of the best
    constant prediction. Clients with fewer than ``MIN_ROWS`` rows are ignored, or pooled if no client has that many.
    ``errors`` has, by client, whether each of the rows that the rate refers to is an error, and ``details`` further
    fields of ``Usefulness``.
    """
    known = {str(client): rows for client, rows in errors.items() if len(rows)}
    if not known:
        return None
    large = {client: rows for client, rows in known.items() if len(rows) >= MIN_ROWS}
    small = sorted(known.items() if large else (), key=lambda pair: -pair[1].mean())
    not_judged = tuple(f"{name} ({rows.sum():,} of {len(rows):,})" for name, rows in small if name not in large)
    judged = large or {"": np.concatenate(list(known.values()))}
    limits = {name: clopper_pearson_upper(rows.sum(), len(rows), 1 - CONFIDENCE) for name, rows in judged.items()}
    worst = max(judged, key=lambda name: (judged[name].mean(), limits[name]))
    upper = max(limits.values())  # of the worst client, whichever it is
    mean = float(np.mean([rows.mean() for rows in known.values()]))
    compared: dict[str, Any] = {"is_useful": upper < 1 - MIN_GAIN, "mean": mean, "constant": 1.0, "upper": upper}
    return Usefulness(**compared, **_describe_worst(metric, worst, judged[worst]), not_judged=not_judged, **details)


def _describe_worst(metric: str, client: Any, rows: np.ndarray) -> dict[str, Any]:
    """Return the fields of ``Usefulness`` on the worst client, from the values of its rows."""
    numbers = {"worst": float(np.mean(rows)), "errors": int(np.sum(rows)) if metric.endswith("_rate") else 0}
    return {"metric": metric, "worst_client": str(client), **numbers, "rows": len(rows), "confidence": CONFIDENCE}


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
    return Usefulness(
        is_useful=lower > 0 or not constant_is_feasible,
        mean=float(np.mean(list(values.values()))),
        constant=mean_constant,
        upper=mean_constant - lower,
        constant_is_feasible=constant_is_feasible,
        **_describe_worst(metric, worst, model[worst]),
        **details,
    )


def judge_usefulness(
    task: TaskSection, label: Label, result: Result, data: ClientData, *, name: str, is_held_out: bool
) -> Usefulness | None:
    """Compare the model of a result with the best constant prediction on rows; None if that is not possible.

    Bounds on misses and on false alarms are judged by the other rate at the worst client, where the constant has 100%;
    bounds on errors by the error rate, compared with the most frequent class; all others by the loss, compared with the
    baseline of a constant prediction. ``name`` is that of the label's column, and ``is_held_out`` says whether the rows
    were not trained on.
    """
    cost, baseline = KINDS[task.kind].description.cost, find_baseline(CONSTANT, result.baselines)
    params = None if baseline is None else baseline.params
    errors = row_errors(task, label, data, result.params)
    constant = {} if params is None else row_errors(task, label, data, params)
    if cost is not None:
        condition, prediction = label.classes if cost == FALSE_ALARMS else label.classes[::-1]
        metric = "false-alarm rate" if cost == FALSE_ALARMS else "miss rate"
        if not all(rows.all() for rows in constant.get(metric, {}).values()):
            return None  # a loose bound on a loss, which F compares better
        texts = {"condition": f"{name} = {condition}", "prediction": f"{name} = {prediction}"}
        return judge_rate(cost, errors[metric], is_held_out=is_held_out, **texts)
    if baseline is None or params is None:
        return None
    metric, prediction = next(iter(errors)), ""
    if task.kind in ERROR_KINDS:
        y = np.asarray(data.rows.columns["y"], int)
        most_frequent = int(np.bincount(y).argmax())
        prediction = f"{name} = {label.classes[most_frequent]}"
        constant = {metric: {client: y[part] != most_frequent for client, part in client_rows(data).items()}}
    known: dict[str, Any] = {"constant_is_feasible": baseline.feasible, "prediction": prediction}
    known["is_held_out"] = is_held_out
    return judge_mean(metric.replace(" ", "_"), errors[metric], constant[metric], **known)


def group_metrics(params: Network, data: ClientData, **labels: Any) -> list[dict[str, Any]]:
    """Return accuracy, selection rate, true and false positive rate and number of rows of both groups.

    Rows of all clients are classified at probability 1/2. Each dict begins with ``labels``. A rate without rows is 0.
    """
    y, group = (np.asarray(data.rows.columns[name]) for name in ("y", "group"))
    predicted = predict_codes(predict_outputs(params, data))
    entries = []
    for name, rows in (("others", group == 0), ("protected", group == 1)):
        values = {
            "accuracy": (predicted == y)[rows],
            "selection_rate": predicted[rows],
            "true_positive_rate": predicted[rows & (y == 1)],
            "false_positive_rate": predicted[rows & (y == 0)],
        }
        rates = {metric: float(one.mean()) if len(one) else 0.0 for metric, one in values.items()}
        entries.append({**labels, "group": name, **rates, "rows": float(rows.sum())})
    return entries
