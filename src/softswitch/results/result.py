"""What a run gives back: the answer, what kind of answer it is, and how it came about."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from safetensors.numpy import load_file

from softswitch.methods.base import Method
from softswitch.methods.round import State, start
from softswitch.methods.trimming import worst_but
from softswitch.oracles.base import Evaluation
from softswitch.privacy.account import PrivacyAccount
from softswitch.problem.parameters import Params
from softswitch.results import saving
from softswitch.results.baseline import CONSTANT, UNCONSTRAINED_WORST, Baseline, find_baseline, side_by_side
from softswitch.results.convergence import quality
from softswitch.results.diagnostic import Diagnostic, DiagnosticCode
from softswitch.results.history import History
from softswitch.results.lower_bound import LowerBound
from softswitch.results.restart import Restart
from softswitch.results.saving import describe_rule, rule_described, same_rule
from softswitch.results.status import Status, StatusCode, status_of_model
from softswitch.support.files import TENSORS, check_size, or_damaged
from softswitch.support.text import in_words, number


@dataclass(frozen=True, eq=False)
class Result:
    """The outcome of ``solve``.

    Attributes:
        params: the answer: the mean of the feasible iterates w_k (before their steps). Without any it is the iterate
            with the smallest criterion, and ``status`` says so. ``selected`` says in words what it is.
        last: the last iterate (after a divergence the last finite one).
        best: among feasible rounds the iterate whose participants reported the smallest worst-client objective; None
            without feasible rounds. Chosen by noisy reports: it is not the smallest F on all data.
        selected: which iterate ``params`` is.
        status: how the run ended.
        diagnostics: what looks wrong with the run, and what to change; empty for a healthy one.
        history: round by round.
        client_objective: f_i of ``params`` on all training data of client i; the regret f_i − f_i* if
            ``client_optimum`` is set, and ``client_loss`` has f_i.
        client_constraint: g_i likewise; clients × constraints.
        pooled_constraint: the constraint on all clients' data put together, one entry a constraint, where it was given
            as a ``PooledConstraint``; else None.
        names: the clients' labels.
        method: the method and its settings.
        seed: of all random choices.
        seconds: wall time of the rounds, compilation included.
        state: all that the server kept: what a warm start can go on with.
        restarts: what a run whose settings chose themselves went through; empty for others.
        lower_bound: on the best possible, where one was asked for; see ``with_lower_bound``.
        auto_settings: what it began with, in words, by what it is.
        baselines: other models to put the answer beside: the start, and more by ``add_baselines``.
        privacy: what the run cost the clients' rows, where these are kept private; else None. What is said of the
            answer at each client is then with noise, and on clipped rows.
        client_optimum: f_i*, where the run minimised regrets; else None. Objectives in the
            history, the lower bound and the baselines are regrets then.
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

    @property
    def gap(self) -> float | None:
        """How far F(params) is above the best possible at most; None where no bound was asked for, ∞ without one."""
        return None if self.lower_bound is None else self.lower_bound.gap

    auto_settings: dict[str, str] = field(default_factory=dict)
    baselines: tuple[Baseline, ...] = ()
    privacy: PrivacyAccount | None = None
    client_optimum: np.ndarray | None = None

    def with_model(self, params: Params, selected: str, judged: Evaluation) -> Result:
        """The same run with another model as its answer: one chosen afterwards, by other rows.

        Args:
            params: the model.
            selected: what it is, in words.
            judged: its values at every client, on all training data.
        """
        bound = self.lower_bound
        if bound is not None:  # it is of the problem with all clients: nobody is set aside
            meets = bool(judged.constraint.max() <= self.method.tolerance)
            bound = replace(bound, objective=float(judged.objective.max()), meets=meets)
        return replace(
            self,
            params=params,
            selected=selected,
            status=status_of_model(self.names, self.method, judged),
            client_objective=judged.objective,
            client_constraint=judged.constraint,
            pooled_constraint=judged.pooled,
            lower_bound=bound,
        )

    @property
    def client_loss(self) -> np.ndarray:
        """f_i itself of ``params`` on all of client i's training data, whether or not regrets were minimised."""
        if self.client_optimum is None:
            return self.client_objective
        return self.client_objective + np.where(np.isneginf(self.client_optimum), 0.0, self.client_optimum)

    @property
    def worst_loss(self) -> float:
        """The largest f_i itself, those set aside who may lie."""
        return worst_but(self.client_loss, self.method.robust)

    @property
    def worst_objective(self) -> float:
        """F(params) on all training data: the worst-off client's objective, those set aside who may lie.

        Where the run minimised regrets, the largest regret.
        """
        return worst_but(self.client_objective, self.method.robust)

    @property
    def worst_constraint(self) -> float:
        """G(params) on all training data: the largest constraint of any client, those set aside who may lie."""
        return worst_but(self.client_constraint, self.method.robust)

    @property
    def violating(self) -> tuple[Any, ...]:
        """The labels of the clients whose constraint is above the tolerance on their training data, worst first."""
        worst = self.client_constraint.max(axis=1)
        worst = np.where(np.isnan(worst), np.inf, worst)  # a constraint that is NaN is not met
        order = np.argsort(-worst, kind="stable")
        return tuple(self.names[i] for i in order if worst[i] > self.method.tolerance)

    @property
    def as_baseline(self) -> Baseline:
        """The answer itself, as the models that it is put beside are told."""
        judged = Evaluation(self.client_objective, self.client_constraint, self.pooled_constraint)
        return Baseline.of("the answer", judged, self.method)

    @property
    def price(self) -> float | None:
        """What the constraint costs: F of the answer less F without a constraint; None where that is not known."""
        free = find_baseline(UNCONSTRAINED_WORST, self.baselines)
        return None if free is None else self.worst_objective - free.objective

    @property
    def stationarity(self) -> float | None:
        """ρ‖c_T − c_{T−1}‖, how far the proximal centre moved in the last stage, times ρ; None without a centre.

        Up to the stage's own error it is how far the stage's answer c_T is from a stationary point: some v in the
        subgradients of f and u in those of g, weighed by a ≥ 0 and b ≥ 0 with a + b = 1, have ‖a·v + b·u‖ no larger.
        NaN before a stage is over; ∞ where it had no feasible round to average.
        """
        if self.method.proximal is None:
            return None
        stages = self.history.stages
        return float(stages[-1]) if len(stages) else float("nan")

    def explain(self) -> str:
        """How the run ended, what the answer is and what it is worth, what was chosen, and what looks wrong."""
        lines = [f"{self.status}.", f"The answer is the {self.selected.removeprefix('the ')}."]
        if self.client_optimum is not None:
            lines.append(self._regrets())
        if self.lower_bound is not None:
            lines.append(f"How good it is: {self.lower_bound}.")
        if self.status.code is not StatusCode.DIVERGED:
            lines += self._worth()
        if self.privacy is not None:
            lines.append(f"Privacy: {self.privacy}.")
        if self.auto_settings:
            lines.append("Chosen: " + "; ".join(f"{what}: {value}" for what, value in self.auto_settings.items()) + ".")
        lines += [f"  Restart {i}: {cycle}." for i, cycle in enumerate(self.restarts, 1)]
        if not self.diagnostics:
            lines.append("No problems detected.")
        lines += [f"- {finding}" for finding in self.diagnostics]
        return "\n".join(lines)

    def _regrets(self) -> str:
        """Which client has the largest regret, and which the largest f."""
        most, worst = (
            (self.names[i], number(float(values[i])))
            for values in (self.client_objective, self.client_loss)
            for i in [int(np.argmax(np.nan_to_num(values, nan=-np.inf)))]
        )
        return (
            f"F is the largest regret, f_i less the client's own best: {most[1]}, of client {most[0]!r}; f itself is "
            f"largest at client {worst[0]!r}, {worst[1]}."
        )

    def _worth(self) -> list[str]:
        """How good the answer is beyond feasibility."""
        lines = [f"{quality(self.history, self.restarts, self.method.tolerance)}."]
        stages = self.history.stages
        if len(stages):
            last, first = (number(one) if np.isfinite(one) else "∞ (no feasible round)" for one in stages[[-1, 0]])
            course = f"{last} in the last of {len(stages)} stages, {first} in the first"
            lines.append(f"Stationarity, how far the proximal centre moved times its strength: {course}.")
        if self.baselines:
            lines += side_by_side(self.as_baseline, self.baselines, len(self.names))
        constant = find_baseline(CONSTANT, self.baselines)
        if constant is not None and not constant.feasible:
            lines.append("No constant prediction is feasible; the one nearest to it is shown.")
        if self.price is not None:
            lines.append(f"The constraint costs the worst client {number(self.price)}.")
        return lines

    def __repr__(self) -> str:
        return (
            f"Result({self.status.code}; worst {'objective' if self.client_optimum is None else 'regret'} "
            f"{in_words(self.worst_objective)}, "
            f"worst constraint {in_words(self.worst_constraint)}, tolerance {self.method.tolerance:g}; {self.selected})"
        )

    def save(self, folder: str | Path) -> None:
        """Write all of it into a folder of its own, for ``Result.load``: the answer, last and best, state and history.

        Nothing is pickled. Labels that are neither text nor numbers become text.

        Args:
            folder: where to write; it is made where there is none.
        """
        words = {
            "selected": self.selected,
            "status": {
                **asdict(self.status),
                "client": _label(self.status.client),
                "criterion": repr(self.status.criterion),
            },
            "diagnostics": [asdict(finding) for finding in self.diagnostics],
            "names": [_label(name) for name in self.names],
            "method": describe_rule(self.method),
            "seed": self.seed,
            "seconds": self.seconds,
            "restarts": [cycle.to_dict() for cycle in self.restarts],
            "lower_bound": None if self.lower_bound is None else self.lower_bound.to_dict(),
            "auto_settings": self.auto_settings,
            "baselines": [baseline.to_dict() for baseline in self.baselines],
            "privacy": None if self.privacy is None else self.privacy.to_dict(),
        }
        trees = {
            "params": self.params,
            "last": self.last,
            "best": self.best,
            "client_objective": self.client_objective,
            "client_constraint": self.client_constraint,
            "pooled_constraint": self.pooled_constraint,
            "state": self.state,
            "client_optimum": self.client_optimum,
        }
        saving.write(Path(folder), words, trees, self.history)

    @classmethod
    def load(cls, folder: str | Path, *, method: Method | None = None, like: Params | None = None) -> Result:
        """The result that ``save`` wrote.

        Args:
            folder: where.
            method: the method, where it is one of your own, or has functions of your own (a schedule, say).
            like: parameters of the same structure, where that is not dicts, lists and tuples alone (a Flax or Equinox
                model, say); their values do not matter.
        """
        path = Path(folder)
        with or_damaged(path):
            return cls._loaded(path, method, like)

    @classmethod
    def _loaded(cls, path: Path, method: Method | None, like: Params | None) -> Result:
        words = saving.read_words(path)
        restored = rule_described(words["method"]) if method is None else same_rule(method, words["method"])
        check_size(path / saving.ARRAYS, TENSORS)
        arrays = load_file(path / saving.ARRAYS)
        objective, constraint, pooled = (
            saving.tree(name, words, arrays, None)
            for name in ("client_objective", "client_constraint", "pooled_constraint")
        )
        has_best = "client_optimum" in words["outlines"]  # files of before have not
        params, last, best = (_on_device(saving.tree(name, words, arrays, like)) for name in ("params", "last", "best"))
        status = words["status"]
        return cls(
            params=params,
            last=last,
            best=best,
            selected=words["selected"],
            status=Status(**{**status, "code": StatusCode(status["code"]), "criterion": _number(status["criterion"])}),
            diagnostics=tuple(
                Diagnostic(**{**told, "code": DiagnosticCode(told["code"])}) for told in words["diagnostics"]
            ),
            history=saving.read_history(path / saving.HISTORY),
            client_objective=objective,
            client_constraint=constraint,
            pooled_constraint=pooled,
            names=tuple(words["names"]),
            method=restored,
            seed=words["seed"],
            seconds=words["seconds"],
            restarts=tuple(Restart.from_dict(told) for told in words.get("restarts", ())),
            auto_settings=words.get("auto_settings", {}),
            baselines=tuple(Baseline.from_dict(told) for told in words.get("baselines", ())),
            state=_on_device(saving.tree("state", words, arrays, start(last, restored, constraint.shape[1]))),
            lower_bound=None if words.get("lower_bound") is None else LowerBound.from_dict(words["lower_bound"]),
            privacy=None if words.get("privacy") is None else PrivacyAccount.from_dict(words["privacy"]),
            client_optimum=saving.tree("client_optimum", words, arrays, None) if has_best else None,
        )


def _on_device(tree: Any) -> Any:
    """JAX's arrays; those of a precision that it is not set to are left as they are."""
    return jax.tree.map(lambda a: jnp.asarray(a) if jax.dtypes.canonicalize_dtype(a.dtype) == a.dtype else a, tree)


def _label(name: Any) -> Any:
    """A label for JSON: text and numbers stay what they are, anything else becomes text."""
    name = name.item() if isinstance(name, np.generic) else name
    return name if name is None or isinstance(name, str | int | float) else str(name)


def _number(told: str) -> float | None:
    return None if told == "None" else float(told)
