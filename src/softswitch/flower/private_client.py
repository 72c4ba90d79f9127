"""PrivateClient: a client of any kind that tells clipped sums with noise, and nothing else of its rows."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from softswitch.certification.intervals import ErrorLevels, perturb_params
from softswitch.certification.private import private_intervals
from softswitch.certification.row_means import ATTEMPTS, NO_MEAN, count_rows_from_values
from softswitch.flower.budget_file import SpentBudget
from softswitch.flower.local_client import PerRowOracle, RefusalError, Task, merge_ranges
from softswitch.flower.messages import Arrays, Values
from softswitch.methods.messages import LocalLoss
from softswitch.privacy.clipping import PLAIN_STEPS, clipped_sum, mean_of_steps, row_mix
from softswitch.privacy.noise import secret_choice, secret_draw, secret_normals
from softswitch.privacy.releases import TOO_FEW, Drawing, Releases, rows_taken
from softswitch.privacy.settings import RecordPrivacy
from softswitch.problem.ranges import Range
from softswitch.results.certificate import Interval
from softswitch.support import checks

logger = logging.getLogger("softswitch.flower")
Made = TypeVar("Made")


class PrivateClient:
    """A client that keeps its rows private, by settings of its own: for ``client_app``, in place of the client itself.

    Rows and noise are drawn from the operating system's entropy, not from the run's seed, which the server knows. What
    is told is counted in a file before it is told, over all runs; where the budget is spent, the client refuses. The
    server learns the settings' δ, what is spent of ε, and how much noise is on what is told of an answer.

    Args:
        client: whose rows; a ``JaxClient``, a ``TorchClient``, a ``NumpyClient``, or one with the methods of
            ``PerRowOracle``. How it draws batches itself does not matter.
        privacy: the settings; ``rate`` says which share of the rows is drawn.
        budget_file: the file to count in. Keep it as long as the rows.
        rounds: in how many rounds it is willing to take part: noise is found for so many.
        local_steps: with how many local steps a round; E of the run.
        evaluations: how often it is willing to tell of an answer, the certificate included.
    """

    def __init__(
        self,
        client: PerRowOracle,
        privacy: RecordPrivacy,
        *,
        budget_file: str | Path,
        rounds: int,
        local_steps: int = 1,
        evaluations: int = 2,
    ) -> None:
        if not isinstance(client, PerRowOracle):
            raise TypeError(f"client must have the methods of PerRowOracle, but {type(client).__name__} has not")
        checks.expect("privacy", privacy, RecordPrivacy)
        if (why := getattr(client, "mixes_rows", None)) is not None:
            raise ValueError(why)
        if getattr(client, "optimizer", None) is not None:
            raise ValueError(PLAIN_STEPS)
        if getattr(client, "statistics", 0):
            raise ValueError(f"{NO_MEAN}; a PooledConstraint is none")
        self._client, self._privacy = client, privacy
        self._start = dict(client.start)  # now: a module's is what it was last given
        planned = Releases.planned(
            privacy,
            checks.whole_number("rounds", rounds, at_least=1),
            checks.whole_number("local_steps", local_steps, at_least=1),
            checks.whole_number("evaluations", evaluations, at_least=1),
        )
        self.name, self.constraints = client.name, client.constraints
        settled = (
            Path(budget_file).expanduser().exists()
        )  # it is made after all attempts, and processes start anew often
        exact = self._rows_concerned(1 if settled else ATTEMPTS)
        self._spent = SpentBudget(budget_file, privacy, Drawing.of(privacy, client.rows), planned)
        self._levels = self._spent.levels
        sizes = [float(many) for many in (*exact, client.rows)]
        if not privacy.public_sizes:
            deviation = self._levels.sizes * math.sqrt(len(sizes))
            noised = self._spent.once(lambda: list(np.add(sizes, deviation * secret_normals(len(sizes)))))
            sizes = [many if many > TOO_FEW * deviation else 0.0 for many in noised]
        self._counts = np.asarray(sizes[:-1])
        self._fixed = privacy.sampling == "fixed"
        self._taken = rows_taken(privacy.rate, client.rows)
        self._share = self._taken / client.rows if self._fixed else privacy.rate
        self.has_surrogate = bool(getattr(client, "has_surrogate", False))
        self.can_repeat_reports = False  # a second value would be a second release
        self.rows = max(1, round(sizes[-1]))
        self.held_out_rows = client.held_out_rows if privacy.public_sizes else 0
        self.value_rows = self.gradient_rows = max(1, round(self._share * self.rows))

    @property
    def privacy_report(self) -> dict[str, Any]:
        """What the server learns of it: ε so far, δ, what is compared, and the deviations of the noise on a judging.

        Those are made of settings, and of numbers of rows as they are told: declared public, or with noise themselves.
        """
        privacy, known = self._privacy, self._counts > 0
        noise = self._levels.evaluation * privacy.clip_value
        deviations = np.where(known, noise / np.where(known, self._counts, 1), np.inf)  # ∞: there is no such value
        return {
            "epsilon": self._spent.epsilon,
            "delta": privacy.delta,
            "neighbours": privacy.neighbours,
            "deviations": deviations.tolist(),
        }

    def report(self, params: Arrays, task: Task) -> Values:
        """f_i and g_i by rows drawn anew, clipped and with noise."""
        self._check(params)
        self._spent.charge(reports=1)
        return self._told(params, self._drawn(), self._levels.report, self._share)

    def update(self, params: Arrays, task: Task, loss: LocalLoss) -> Arrays:
        """u_i: the mean of E gradients, each of rows drawn anew, clipped row by row and with noise."""
        if loss.penalty:
            raise RefusalError("it keeps its rows private, and follows no penalty on what exceeds the tolerance")
        self._check(params)
        self._spent.charge(steps=task.local_steps)
        told: Any = np.zeros(self.constraints)
        counts: Any = self._counts
        mix, scale = row_mix(loss, told, counts)

        def noised(here: Arrays) -> Arrays:
            return self._noised_gradient(here, np.asarray(mix))

        return mean_of_steps(params, task.local_steps, task.step_size, float(scale) / self._share, noised)

    def _noised_gradient(self, params: Arrays, mix: np.ndarray) -> Arrays:
        drawn, clip = self._drawn(), self._privacy.clip_gradient
        summed = self._summed_gradients(params, drawn, mix, clip)
        deviation = self._levels.step * clip
        return {
            name: np.asarray(part, float) + deviation * secret_normals(*part.shape) for name, part in summed.items()
        }

    def evaluate(self, params: Arrays) -> Values:
        """f_i and g_i by all rows, clipped and with noise."""
        self._check(params)
        self._spent.charge(evaluations=1)
        return self._told(params, np.arange(self._client.rows), self._levels.evaluation, 1.0)

    def certify(
        self, params: Arrays, error: float, ranges: Sequence[Range | None], *, levels: ErrorLevels | None = None
    ) -> list[Interval]:
        """Intervals from the rows held out, of which only sums with noise are used."""
        known = merge_ranges(ranges, getattr(self._client, "ranges", [None] * len(ranges)))
        if None in known[1:]:
            raise RefusalError("it keeps its rows private, and certifies only constraints whose ranges are known")
        self._check(params)
        self._spent.charge(evaluations=1)
        at, rows = ErrorLevels.uniform(error) if levels is None else levels, np.arange(self._client.held_out_rows)
        values, elsewhere = (
            self._by_rows(self._client.held_out_values, where, rows)
            for where in (params, perturb_params(self._start, 1))
        )
        return private_intervals(values, elsewhere, self._levels.evaluation, at, known)

    def _told(self, params: Arrays, rows: np.ndarray, level: float, share: float) -> Values:
        clip = self._privacy.clip_value
        summed = clipped_sum(self._by_rows(self._client.row_values, params, rows), clip, 1 + self.constraints)
        noised = summed + level * clip * secret_normals(len(summed))
        known = self._counts > 0
        told = np.where(known, noised / np.where(known, share * self._counts, 1), -np.inf)
        return Values(float(told[0]), told[1:].tolist())

    def _by_rows(self, values: Callable[[Arrays, np.ndarray], Any], params: Arrays, rows: np.ndarray) -> np.ndarray:
        """Values on rows; where that fails each row is asked by itself, and one that fails tells nothing.

        Whether an answer comes must not depend on a single row either: the server chooses the parameters.
        """
        functions = 1 + self.constraints

        def of(some: np.ndarray) -> np.ndarray:
            return np.asarray(values(params, some), float).reshape(len(some), functions)

        return self._or_one_by_one(of, rows, np.concatenate, np.full((1, functions), np.nan))

    def _summed_gradients(self, params: Arrays, rows: np.ndarray, mix: np.ndarray, clip: float) -> Arrays:
        """The sum of rows' gradients, likewise."""
        nothing = {name: np.zeros(value.shape) for name, value in params.items()}

        def of(some: np.ndarray) -> Arrays:
            found = self._client.clipped_gradient(params, some, mix, clip)
            return {name: np.asarray(found[name], float).reshape(value.shape) for name, value in params.items()}

        def summed(parts: list[Arrays]) -> Arrays:
            return {name: sum((part[name] for part in parts), start=zero) for name, zero in nothing.items()}

        return self._or_one_by_one(of, rows, summed, nothing)

    def _or_one_by_one(
        self, of: Callable[[np.ndarray], Made], rows: np.ndarray, together: Callable[[list[Made]], Made], nothing: Made
    ) -> Made:
        """What ``of`` says of rows; where it fails, what it says of each, put together, ``nothing`` of who fails."""
        try:
            return of(rows)
        except Exception:
            logger.exception("client %r: a row could not be computed; it counts for nothing", self.name)
        found = []
        for row in rows:
            try:
                found.append(of(np.array([row])))
            except Exception:  # why is in the log already
                found.append(nothing)
        return together(found or [nothing])

    def _check(self, params: Arrays) -> None:
        """Raise where parameters are not those of the model: before any row is asked."""
        own = {name: value.shape for name, value in self._start.items()}
        if (told := {name: value.shape for name, value in params.items()}) != own:
            raise RefusalError(f"its parameters have the shapes {own}, and it is asked about {told}"[:200])

    def _drawn(self) -> np.ndarray:
        rows = self._client.rows
        return secret_choice(rows, self._taken) if self._fixed else secret_draw(rows, self._privacy.rate)

    def _rows_concerned(self, attempts: int) -> list[int]:
        """How many rows f and each g concern; raise where one is no mean over rows."""
        client, everything = self._client, np.arange(self._client.rows)

        def by_row(params: Arrays) -> np.ndarray:
            return self._quietly(lambda: client.row_values(params, everything))

        def whole(params: Arrays) -> np.ndarray:
            told = self._quietly(lambda: client.evaluate(params))
            return np.array([told.objective, *told.constraint])

        return count_rows_from_values(by_row, whole, self._start, attempts)

    def _quietly(self, compute: Callable[[], Made]) -> Made:
        """What ``compute`` gives; where it fails, why stays here: an error's text may tell of rows."""
        try:
            return compute()
        except Exception:
            logger.exception("client %r could not compute what it was asked for", self.name)
            raise RefusalError("it could not compute its answer; why is in its own log") from None
