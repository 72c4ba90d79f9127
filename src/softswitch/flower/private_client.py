"""PrivateClient: a client that releases only noisy sums of clipped rows, within a privacy budget."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from filelock import FileLock

from softswitch.certification.intervals import ErrorLevels, perturb_params
from softswitch.certification.private import ATTEMPTS, NO_MEAN, count_rows_from_values, private_intervals
from softswitch.flower.local_client import (
    PerRowOracle,
    RefusalError,
    Task,
    expected_class_rows,
    merge_ranges,
    refuse_unless,
)
from softswitch.flower.messages import Arrays, Values, to_values
from softswitch.methods.messages import LocalLoss
from softswitch.privacy.accounting import calibrate_noise, compute_epsilon
from softswitch.privacy.noise import add_noise, quantize_rows, secret_draw
from softswitch.privacy.numpy_rows import average_steps, mix_row_losses, split_vector
from softswitch.privacy.settings import NoiseLevels, RecordPrivacy, Releases
from softswitch.problem.ranges import Range
from softswitch.results.certificate import Interval
from softswitch.support import checks
from softswitch.support.files import write_atomically

logger = logging.getLogger("softswitch.flower")
MAX_EPSILON = 10.0  # with a larger ε, the policy on small classes applies
T = TypeVar("T")


class PrivateClient:
    """A client with differential privacy for its rows, to pass to ``client_app`` in place of another client.

    Batches and noise are drawn from the operating system's entropy, not from the run's seed, which the server knows.
    Every release is counted in a file before it is sent, over all runs. When the budget is spent, the client refuses.
    The server learns δ, the spent ε, and the standard deviations of the noise on evaluations.

    The rules of ``ClientPolicy`` on small classes do not apply if ``privacy.epsilon`` is at most 10 and ``delta`` at
    most 1/n for n rows. Otherwise, and with ``noise`` in place of ``epsilon``, they apply as to the ``client``.

    Args:
        client: A ``JaxClient``, a ``TorchClient``, a ``NumpyClient`` or another client with the methods of
            ``PerRowOracle``. Its own batch sizes are not used.
        privacy: The privacy settings; ``rate`` is the share of rows in a batch.
        budget_file: File that counts releases. Keep it as long as the rows.
        rounds: Number of rounds that the noise is calibrated for.
        local_steps: Number of local steps E in a round.
        evaluations: Number of evaluations to allow, certificates included.
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
            raise TypeError(f"client must have the methods of PerRowOracle, but is a {type(client).__name__}")
        checks.check_instance("privacy", privacy, RecordPrivacy)
        if (reason := getattr(client, "mixes_rows", None)) is not None:
            raise ValueError(reason)
        if getattr(client, "optimizer", None) is not None:
            raise ValueError("optimizer must be None with privacy: local steps are plain steps along clipped gradients")
        if getattr(client, "statistics", 0):
            raise ValueError(f"{NO_MEAN}; a PooledConstraint is none")
        self._client, self._privacy = client, privacy
        self.start = dict(client.start)  # a copy, because a module's parameters change
        counts = {"rounds": rounds, "local_steps": local_steps, "evaluations": evaluations}
        rounds, local_steps, evaluations = (checks.check_integer(name, n, minimum=1) for name, n in counts.items())
        planned = Releases(rounds, rounds * local_steps, evaluations)
        self.name, self.constraints = client.name, client.constraints
        is_checked = Path(budget_file).expanduser().exists()  # the file is created after all attempts passed
        self._counts = np.asarray(self._count_rows(1 if is_checked else ATTEMPTS), float)
        self._budget = SpentBudget(budget_file, privacy, planned)
        self._levels = self._budget.levels
        self.has_surrogate = bool(getattr(client, "has_surrogate", False))
        self.can_repeat_reports = False  # a second value would be a second release
        self.rows, self.held_out_rows = client.rows, client.held_out_rows
        self.value_rows = self.gradient_rows = max(1, round(privacy.rate * self.rows))
        self.data_digest = getattr(client, "data_digest", None)
        self.held_out_class_rows = getattr(client, "held_out_class_rows", None)
        self.class_rows: Mapping[str, int] | None = getattr(client, "class_rows", None)
        if self.class_rows:
            self.class_rows_per_batch = expected_class_rows(self.class_rows, self.value_rows)

    @property
    def protects_rows(self) -> bool:
        """Whether the budget bounds what all releases reveal about a single row."""
        epsilon, delta = self._privacy.epsilon, self._privacy.delta
        return epsilon is not None and epsilon <= MAX_EPSILON and delta * self.rows <= 1

    @property
    def privacy_report(self) -> dict[str, Any]:
        """What the server learns: spent ε, δ, the neighbouring relation, and the noise on an evaluation.

        It depends only on settings and on public numbers of rows.
        """
        privacy, noise = self._privacy, self._levels.evaluation * self._privacy.clip_value
        report = {"epsilon": self._budget.epsilon, "delta": privacy.delta, "neighbours": privacy.neighbours}
        return report | {"deviations": self._over_counts(noise, 1.0, np.inf).tolist()}

    def _over_counts(self, sums: Any, share: float, unknown: float) -> np.ndarray:
        """Return sums divided by a share of the rows of each function, and a default for functions without rows."""
        known = self._counts > 0
        return np.where(known, sums / np.where(known, share * self._counts, 1), unknown)

    def report(self, params: Arrays, task: Task) -> Values:
        """Return noisy f_i and g_i on a batch of clipped rows."""
        params = self._check_params(params)
        self._budget.charge(reports=1)
        return self._noisy_values(params, self._draw_rows(), self._levels.report, self._privacy.rate)

    def update(self, params: Arrays, task: Task, loss: LocalLoss) -> Arrays:
        """Return u_i, the mean of E noisy gradients on batches of clipped rows."""
        refuse_unless(not loss.penalty, "it is private, and does not support a penalty on constraint violations")
        params = self._check_params(params)
        self._budget.charge(steps=task.local_steps)
        values: Any = np.zeros(self.constraints)
        counts: Any = self._counts
        mix, scale = mix_row_losses(loss, values, counts)
        clip, per_row = self._privacy.clip_gradient, float(scale) / self._privacy.rate

        def noisy_gradient(point: Arrays) -> Arrays:
            total = self._sum_gradients(point, self._draw_rows(), np.asarray(mix), clip)
            return split_vector(per_row * clip * add_noise(total, self._levels.step), point)

        return average_steps(params, task.local_steps, task.step_size, noisy_gradient)

    def evaluate(self, params: Arrays) -> Values:
        """Return noisy f_i and g_i on all rows, clipped."""
        params = self._check_params(params)
        self._budget.charge(evaluations=1)
        return self._noisy_values(params, np.arange(self._client.rows), self._levels.evaluation, 1.0)

    def certify(self, params: Arrays, levels: ErrorLevels, ranges: Sequence[Range | None]) -> list[Interval]:
        """Return confidence intervals from noisy sums over the held-out rows."""
        known = merge_ranges(ranges, getattr(self._client, "ranges", [None] * len(ranges)))
        refuse_unless(None not in known[1:], "it is private, and certifies only constraints with known ranges")
        params = self._check_params(params)
        self._budget.charge(evaluations=1)
        rows, evaluate = np.arange(self._client.held_out_rows), self._client.held_out_values
        values, elsewhere = (
            self._evaluate_rows(evaluate, point, rows) for point in (params, perturb_params(self.start, 1))
        )
        return private_intervals(values, elsewhere, self._levels.evaluation, levels, known)

    def _noisy_values(self, params: Arrays, rows: np.ndarray, level: float, share: float) -> Values:
        clip = self._privacy.clip_value
        total = quantize_rows(self._evaluate_rows(self._client.row_values, params, rows), clip).sum(axis=0)
        return to_values(self._over_counts(clip * add_noise(total, level), share, -np.inf))

    def _evaluate_rows(
        self, row_values: Callable[[Arrays, np.ndarray], Any], params: Arrays, rows: np.ndarray
    ) -> np.ndarray:
        functions = 1 + self.constraints

        def compute(indices: np.ndarray) -> np.ndarray:
            return np.asarray(row_values(params, indices), float).reshape(len(indices), functions)

        return self._compute_robustly(compute, rows, np.concatenate, np.full((1, functions), np.nan))

    def _sum_gradients(self, params: Arrays, rows: np.ndarray, mix: np.ndarray, clip: float) -> np.ndarray:
        zeros = np.zeros(sum(value.size for value in params.values()), np.int64)

        def compute(indices: np.ndarray) -> np.ndarray:
            sums = self._client.clipped_gradient(params, indices, mix, clip)
            return np.concatenate([np.asarray(sums[name]).reshape(value.size) for name, value in params.items()])

        def add(parts: list[np.ndarray]) -> np.ndarray:
            return sum(parts, start=zeros)

        return self._compute_robustly(compute, rows, add, zeros)

    def _compute_robustly(
        self, compute: Callable[[np.ndarray], T], rows: np.ndarray, combine: Callable[[list[T]], T], default: T
    ) -> T:
        """Compute on all rows; after a failure, compute on each row and use a default for rows that fail.

        The server chooses the parameters, so whether there is a reply must not depend on a single row.
        """
        try:
            return compute(rows)
        except Exception:
            logger.exception("client %r: the computation failed for a row, which is ignored", self.name)
        results = []
        for row in rows:
            try:
                results.append(compute(np.array([row])))
            except Exception:  # logged above
                results.append(default)
        return combine(results or [default])

    def _check_params(self, params: Arrays) -> Arrays:
        """Return the parameters in the client's dtypes, which the server cannot choose; refuse other shapes."""
        expected = {name: value.shape for name, value in self.start.items()}
        shapes = {name: value.shape for name, value in params.items()}
        refuse_unless(shapes == expected, f"parameters must have the shapes {expected}, but have {shapes}"[:200])
        with np.errstate(all="ignore"):
            return {name: np.asarray(params[name]).astype(value.dtype) for name, value in self.start.items()}

    def _draw_rows(self) -> np.ndarray:
        return secret_draw(self._client.rows, self._privacy.rate)

    def _count_rows(self, attempts: int) -> list[int]:
        """Return the number of rows that f and each g apply to, or raise if a function is not a mean over rows.

        An error is logged only locally, because its text may reveal rows.
        """
        client, rows = self._client, np.arange(self._client.rows)

        def compute_quietly(compute: Callable[[Arrays], Any], params: Arrays) -> np.ndarray:
            try:
                return np.asarray(compute(params))
            except Exception:
                logger.exception("client %r could not compute its reply", self.name)
                raise RefusalError("it could not compute its reply; the error is in the client's log") from None

        row_values = partial(compute_quietly, lambda params: client.row_values(params, rows))
        mean_values = partial(compute_quietly, lambda params: np.hstack(client.evaluate(params)[:2]))
        return count_rows_from_values(row_values, mean_values, self.start, attempts)


class SpentBudget:
    """Counts releases in a file that all runs share, and refuses those that exceed the budget.

    The noise is calibrated for the ``planned`` releases, which are also the maximum. ``levels`` is the noise on each
    kind of release. It is computed once and kept in the file.
    """

    def __init__(self, file: str | Path, privacy: RecordPrivacy, planned: Releases) -> None:
        self._file = Path(file).expanduser()
        self._privacy, self._planned = privacy, planned
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._settings = json.loads(json.dumps([asdict(privacy), planned]))
        with self._lock():
            if not self._file.exists():
                self.levels = calibrate_noise(privacy, planned)
                self._write(Releases())
            _, self.levels, settings = self._read()
        if settings != self._settings:
            kept = "keep privacy, rounds, local_steps and evaluations unchanged"
            raise ValueError(f"budget_file {self._file} was created with other settings: {kept}")

    @property
    def epsilon(self) -> float:
        """The ε of the releases so far."""
        return compute_epsilon(self._read()[0], self.levels, self._privacy.rate, self._privacy.delta)

    def charge(self, **releases: int) -> None:
        """Count releases by kind before they are sent, or raise ``RefusalError`` if they exceed the budget."""
        with self._lock():
            before = self._read()[0]
            after = before._replace(**{kind: getattr(before, kind) + count for kind, count in releases.items()})
            is_planned = all(count <= maximum for count, maximum in zip(after, self._planned, strict=True))
            if self._privacy.epsilon is not None and not is_planned:
                raise RefusalError(f"its privacy budget of {self._privacy.epsilon:g} does not allow another release")
            self._write(after)

    def _lock(self) -> FileLock:
        return FileLock(self._file.with_name(f".{self._file.name}.lock"))

    def _read(self) -> tuple[Releases, NoiseLevels, Any]:
        try:
            state = json.loads(self._file.read_text(encoding="utf-8"))
            releases, levels = Releases(*map(int, state["releases"])), NoiseLevels(*map(float, state["levels"]))
            return releases, levels, state["settings"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RefusalError(f"its budget_file cannot be read: {self._file.name}") from error

    def _write(self, releases: Releases) -> None:
        state = {"releases": releases, "levels": self.levels, "settings": self._settings}
        write_atomically(self._file, json.dumps(state).encode())
