"""What private clients report about their budgets."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from flwr.app import ConfigRecord, RecordDict

from softswitch.flower import messages as wire
from softswitch.flower.messages import require
from softswitch.privacy.accounting import PrivacyAccount
from softswitch.results.certificate import Certificate
from softswitch.results.result import Result


class PrivacyReport(NamedTuple):
    """Spent ε, δ, the neighbouring relation, and the deviations of the noise on f and each g, or None if unknown."""

    epsilon: float
    delta: float
    neighbours: str
    deviations: tuple[float | None, ...]


class PrivacyReports:
    """The last privacy report of each client that sends one; ``functions`` is the number of f and all g."""

    def __init__(self, functions: int) -> None:
        self._functions = functions
        self.reports: dict[str, PrivacyReport] = {}

    def read(self, name: str, content: RecordDict) -> float | None:
        """Keep the privacy report in a client's reply and return its ε, or raise ``InvalidMessageError``."""
        record = content.get(wire.PRIVACY)
        if not isinstance(record, ConfigRecord):
            return None
        epsilon, delta = wire.read(record, "epsilon", float), wire.read(record, "delta", float)
        require(epsilon >= 0 and 0 < delta < 1, f"it reports a spent budget of ε = {epsilon:g}, δ = {delta:g}")
        numbers = wire.read_numbers(record, "deviations")
        is_valid = len(numbers) == self._functions and all(number >= 0 for number in numbers)
        require(is_valid, f"it must report {self._functions} deviations of its noise >= 0, but reports {numbers!r:.80}")
        deviations = tuple(None if math.isinf(number) else number for number in numbers)
        self.reports[name] = PrivacyReport(epsilon, delta, wire.read_text(record, "neighbours"), deviations)
        return epsilon

    def restore(self, reports: Mapping[str, Any]) -> None:
        """Take over the reports of a checkpoint."""
        self.reports = {
            name: PrivacyReport(epsilon, delta, neighbours, tuple(deviations))
            for name, (epsilon, delta, neighbours, deviations) in reports.items()
        }

    def account(self, names: Sequence[Any]) -> PrivacyAccount | None:
        """Return the budgets that these clients have spent; None if no client reports one."""
        if not self.reports:
            return None
        unknown = PrivacyReport(math.nan, 0.0, "", (None,) * self._functions)
        reports = [self.reports.get(str(name), unknown) for name in names]
        return PrivacyAccount(
            epsilon=tuple(None if report is unknown else report.epsilon for report in reports),
            delta=max(report.delta for report in self.reports.values()),
            neighbours="; or ".join(sorted({report.neighbours for report in self.reports.values()})),
            deviations=tuple(report.deviations for report in reports),
        )

    def add_to_result(self, result: Result) -> Result:
        """Return the result with the spent budgets, and a remark on noisy values in its status."""
        account = self.account(result.names)
        if account is None or np.isnan(result.client_objective).all():
            return replace(result, privacy=account)
        status = replace(result.status, message=f"{result.status.message}; {account.value_note}")
        return replace(result, status=status, privacy=account)

    def add_to_certificate(self, certificate: Certificate) -> Certificate:
        """Return the certificate with the largest budget that was spent, its own cost included."""
        if not self.reports:
            return certificate
        reports: Sequence[PrivacyReport] = list(self.reports.values())
        largest = {name: max(getattr(report, name) for report in reports) for name in ("epsilon", "delta")}
        return replace(certificate, **largest)
