"""The interface of a client."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np

from softswitch.flower.messages import Arrays, Values
from softswitch.methods.messages import LocalLoss
from softswitch.problem.ranges import Range
from softswitch.results.certificate import Interval


class RefusalError(Exception):
    """Raise this in a client to refuse a request; the text is sent to the server as the reason."""


class Task(NamedTuple):
    """The settings that the server sends with the parameters of a round.

    Attributes:
        round: The round k.
        seed: The seed of the run. A client's batches depend only on the seed, its name and k.
        local_steps: The number of local steps E.
        step_size: The local step size γ.
        switches: Whether the local loss is either f_i or a mix of client i's constraints, never both.
    """

    round: int
    seed: int
    local_steps: int
    step_size: float
    switches: bool


@runtime_checkable
class LocalOracle(Protocol):
    """A client. Parameters and directions are arrays by name.

    A client may have three more attributes. ``statistics`` is the number of additive statistics that a pooled
    constraint reports. ``has_surrogate = True`` means that its updates follow a surrogate of its constraint. The switch
    then accepts a constraint that equals the tolerance. ``can_repeat_reports = True`` means that ``report`` draws the
    same batch for the same task. A server with drift correction then requests reports at both w_k and w_{k−1}.

    Attributes:
        name: The client's name, unique among the clients of a run.
        rows: Number of training rows.
        held_out_rows: Number of rows held out for the certificate.
        value_rows: Number of rows in the batch of a report.
        gradient_rows: Number of rows in the batch of a gradient.
        constraints: Number of constraints.
    """

    name: str
    rows: int
    held_out_rows: int
    value_rows: int
    gradient_rows: int
    constraints: int

    def report(self, params: Arrays, task: Task) -> Values:
        """Return f_i and g_i at w_k on a batch.

        Args:
            params: The parameters w_k.
            task: The settings of the round.
        """
        ...

    def update(self, params: Arrays, task: Task, loss: LocalLoss) -> Arrays:
        """Return the direction u_i of E local steps from w_k on the local loss.

        Args:
            params: The parameters w_k.
            task: The settings of the round.
            loss: The weights of the objective and of this client's constraints.
        """
        ...

    def evaluate(self, params: Arrays) -> Values:
        """Return f_i and g_i on all training rows.

        Args:
            params: The parameters to evaluate.
        """
        ...

    def certify(self, params: Arrays, error: float, ranges: Sequence[Range | None]) -> list[Interval]:
        """Return confidence intervals for f_i and g_i from the rows held out.

        A client may also accept the keyword ``levels``, an ``ErrorLevels`` with a second error probability and the
        tolerance. Its intervals then have p-values. Without them certification may need more rows.

        Args:
            params: The parameters to certify.
            error: The error probability of each side of each interval.
            ranges: The ranges of f and of each g on a single row, or None for those that are not known.
            levels: A second error probability and the tolerance, for p-values. This argument is optional.
        """
        ...


@runtime_checkable
class PerRowOracle(LocalOracle, Protocol):
    """A client whose functions can be evaluated on single rows, as a ``PrivateClient`` requires.

    If the values of a row depend on other rows, an attribute ``mixes_rows`` must contain the reason; such a client
    cannot be private. Neither can a client whose attribute ``optimizer`` is not None.

    Attributes:
        start: Parameters of the model's names and shapes; their values do not matter.
    """

    start: Arrays

    def row_values(self, params: Arrays, rows: np.ndarray) -> np.ndarray:
        """Return f and each g on single training rows, one row of the result for each.

        Args:
            params: The parameters.
            rows: The indices of the rows.

        Returns:
            An array of shape (rows, functions); −∞ or NaN if the function does not apply to the row.
        """
        ...

    def clipped_gradient(self, params: Arrays, rows: np.ndarray, mix: np.ndarray, clip: float) -> Arrays:
        """Return the sum over rows of the clipped gradients of <mix, (f, g)>; a surrogate replaces its constraint.

        Args:
            params: The parameters.
            rows: The indices of the rows.
            mix: The weights of f and each g.
            clip: The largest norm of a row's gradient.
        """
        ...

    def held_out_values(self, params: Arrays, rows: np.ndarray) -> np.ndarray:
        """Return f and each g on single rows held out, as ``row_values`` does for training rows.

        Args:
            params: The parameters to certify.
            rows: The indices of the rows.
        """
        ...


def merge_ranges(server: Sequence[Range | None], client: Sequence[Range | None]) -> list[Range | None]:
    """Return the ranges from the server, completed by those of the client."""
    return [fallback if given is None else given for given, fallback in zip(server, client, strict=True)]
