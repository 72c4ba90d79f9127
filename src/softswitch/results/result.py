"""The result of a run: the answer, its status, diagnostics and history."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from softswitch.methods.base import Method
from softswitch.methods.state import State
from softswitch.methods.weighting import trimmed_max
from softswitch.oracles.base import Evaluation
from softswitch.privacy.accounting import PrivacyAccount
from softswitch.problem.parameters import Params
from softswitch.results import baseline
from softswitch.results import status as run_status
from softswitch.results.baseline import Baseline, LowerBound, find_baseline
from softswitch.results.diagnostics import diagnose
from softswitch.results.history import History
from softswitch.results.status import Diagnostic, Restart, RunEnd, Status, StatusCode
from softswitch.support.text import format_number, format_value

_EVALUATION = ("client_objective", "client_constraint", "pooled_constraint")  # the entries of an ``Evaluation``
_FROM_END = ("history", "names", "method", "seed", "seconds", "state", "restarts", "auto_settings")


@dataclass(frozen=True, eq=False)
class Result:
    """The outcome of ``solve``: the answer, its values at all n clients, and how the run went.

    Attributes:
        params: The answer. By default, the mean of the feasible iterates w_k (before their steps) or, without feasible
            rounds, the iterate with the smallest criterion.
        last: The last iterate (after a divergence, the last finite one).
        best: The feasible iterate with the smallest reported worst-client objective; None without feasible rounds.
            Reports may be noisy: it need not have the smallest F on all data.
        selected: Description of the iterate that ``params`` is.
        status: How the run ended.
        diagnostics: Problems detected in the run, with advice; empty if there are none.
        history: Values of every round.
        client_objective: f_i of ``params`` on all training data of client i, shape (n,); the regret f_i − f_i* if
            ``client_optimum`` is set. −∞ if the client has no objective.
        client_constraint: g_i of ``params`` on all training data, n × constraints; −∞ if the client has none.
        pooled_constraint: The constraints on the data of all clients together, shape (constraints,), for a
            ``PooledConstraint``; else None.
        names: Labels of the clients, in the order of all arrays.
        method: The method and its settings.
        seed: Seed of all random choices.
        seconds: Wall time of the rounds in seconds, including compilation.
        state: State of the server after the last round, for a warm start.
        restarts: The restarts of an auto-tuned run; empty for other runs.
        lower_bound: Lower bound on the optimal F; None unless it was requested (``with_lower_bound``).
        auto_settings: Descriptions by name of what was chosen automatically: the method and its settings in an
            automatic run, and how the clients of a PyTorch module were computed.
        baselines: Models to compare the answer with: the start, and those of ``add_baselines``.
        privacy: The privacy loss of the clients' rows; None if the run was not private. In a private run, values at the
            clients are noisy and computed on clipped rows.
        client_optimum: f_i*, shape (n,), if the run minimised regrets; else None. Objectives in the history, the lower
            bound and the baselines are then regrets.
    """

    params: Params
    last: Params
    best: Params | None
    selected: str
    status: Status
    diagnostics: tuple[Diagnostic, ...]
    history: History
    client_objective: np.ndarray
    client_constraint: np.ndarray
    pooled_constraint: np.ndarray | None
    names: tuple[Any, ...]
    method: Method
    seed: int
    seconds: float
    state: State
    restarts: tuple[Restart, ...] = ()
    lower_bound: LowerBound | None = None
    auto_settings: dict[str, str] = field(default_factory=dict)
    baselines: tuple[Baseline, ...] = ()
    privacy: PrivacyAccount | None = None
    client_optimum: np.ndarray | None = None

    @property
    def gap(self) -> float | None:
        """Upper bound on F(params) minus the optimal F; None if no lower bound was requested, ∞ if none was found."""
        return None if self.lower_bound is None else self.lower_bound.gap

    def with_model(self, params: Params, selected: str, evaluation: Evaluation) -> Result:
        """Return a copy with another model as the answer, and its values, status and optimality gap.

        Args:
            params: Parameters of the model.
            selected: Description of the model.
            evaluation: Values of the model at every client on all training data.
        """
        bound = self.lower_bound
        if bound is not None:  # the bound is on the problem with all clients: none is trimmed
            feasible = evaluation.is_feasible(replace(self.method, robust=None))
            bound = replace(bound, objective=float(evaluation.objective.max()), feasible=feasible)
        status = run_status.model_status(self.names, self.method, evaluation)
        values: dict[str, Any] = dict(zip(_EVALUATION, evaluation, strict=True))
        return replace(self, params=params, selected=selected, status=status, lower_bound=bound, **values)

    @property
    def client_loss(self) -> np.ndarray:
        """Objective f_i of ``params`` on all training data of client i, shape (n,), also if regrets were minimised."""
        if self.client_optimum is None:
            return self.client_objective
        return self.client_objective + np.where(np.isneginf(self.client_optimum), 0.0, self.client_optimum)

    @property
    def worst_loss(self) -> float:
        """The largest f_i of ``params`` on all training data, trimmed if the method is robust."""
        return trimmed_max(self.client_loss, self.method.robust)

    @property
    def worst_objective(self) -> float:
        """F(params) on all training data: the largest objective (or regret), trimmed if the method is robust."""
        return trimmed_max(self.client_objective, self.method.robust)

    @property
    def worst_constraint(self) -> float:
        """G(params) on all training data: the largest constraint, trimmed if the method is robust."""
        return trimmed_max(self.client_constraint, self.method.robust)

    @property
    def violating(self) -> tuple[Any, ...]:
        """Labels of the clients above the tolerance on their training data, the largest constraint first."""
        worst = self.client_constraint.max(axis=1)
        order = np.argsort(-np.where(np.isnan(worst), np.inf, worst), kind="stable")
        return tuple(self.names[i] for i in order if not worst[i] <= self.method.tolerance)

    @property
    def evaluation(self) -> Evaluation:
        """The values of ``params`` at every client on all training data."""
        return Evaluation(*(getattr(self, name) for name in _EVALUATION))

    @property
    def as_baseline(self) -> Baseline:
        """The answer summarised as a ``Baseline``, for comparison with ``baselines``."""
        return Baseline.of("the answer", self.evaluation, self.method)

    @property
    def price(self) -> float | None:
        """Cost of the constraint: F of the answer minus F of the unconstrained baseline; None without that baseline."""
        unconstrained = find_baseline(baseline.UNCONSTRAINED_WORST, self.baselines)
        return None if unconstrained is None else self.worst_objective - unconstrained.objective

    def explain(self) -> str:
        """Return a text of several lines: status, answer, its quality, automatic settings and diagnostics."""
        lines = [f"{self.status}.", f"The answer is the {self.selected.removeprefix('the ')}."]
        if self.client_optimum is not None:
            values = (self.client_objective, self.client_loss)
            regret, loss = (self.names[int(np.argmax(np.nan_to_num(one, nan=-np.inf)))] for one in values)
            lines.append(f"F is the largest regret, f_i − f_i*, of client {regret!r}; f is largest at client {loss!r}.")
        if self.lower_bound is not None:
            lines.append(f"Optimality: {self.lower_bound}.")
        if self.status.code is not StatusCode.DIVERGED:
            if self.baselines:
                lines += baseline.tabulate_baselines(self.as_baseline, self.baselines, len(self.names))
            constant = find_baseline(baseline.CONSTANT, self.baselines)
            if constant is not None and not constant.feasible:
                lines.append("No constant prediction is feasible; the one with the smallest constraint is shown.")
            if self.price is not None:
                lines.append(f"The constraint costs the worst client {format_number(self.price)}.")
        if self.privacy is not None:
            lines.append(f"Privacy: {self.privacy}.")
        if self.auto_settings:
            settings = "; ".join(f"{name}: {value}" for name, value in self.auto_settings.items())
            lines.append(f"Automatic settings: {settings}.")
        lines += [f"  Restart {i}: {restart}." for i, restart in enumerate(self.restarts, 1)]
        lines += [f"- {diagnostic}" for diagnostic in self.diagnostics] or ["No problems detected."]
        return "\n".join(lines)

    def __repr__(self) -> str:
        kind = "objective" if self.client_optimum is None else "regret"
        objective, constraint = map(format_value, (self.worst_objective, self.worst_constraint))
        values = f"worst {kind} {objective}, worst constraint {constraint}, tolerance {self.method.tolerance:g}"
        return f"Result({self.status.code}; {values}; {self.selected})"


def build_result(end: RunEnd, clients: Any, scatter: Callable[[], float]) -> Result:
    """Select the answer of a finished run, evaluate it at all clients, and diagnose the run.

    ``clients`` and ``scatter`` are as in ``diagnose``; ``clients`` also has ``evaluate_params``.
    """
    params, selected = run_status.select_answer(end)
    evaluation = clients.evaluate_params(params)
    return Result(
        params=params,
        last=end.state.params,
        best=end.state.best.params if end.history.feasible_rounds else None,
        selected=selected,
        status=run_status.run_status(end, evaluation),
        diagnostics=tuple(diagnose(end, evaluation, clients, scatter)),
        **dict(zip(_EVALUATION, evaluation, strict=True)),
        baselines=() if end.start is None else (Baseline.of(baseline.START, end.start, end.method),),
        **{name: getattr(end, name) for name in _FROM_END},
    )
