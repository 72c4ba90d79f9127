"""What a run cost its clients' rows: ε of each client, and what it was spent on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from softswitch.clients.private.releases import NoiseLevels, Releases
from softswitch.support.text import number


@dataclass(frozen=True)
class PrivacyAccount:
    """What was told of rows in a run, and how much any single row can be known by it.

    Attributes:
        epsilon: ε of each client, of all that it told; the judging of the answer is part of it.
        delta: δ of all of them.
        budget: the ε that a client may spend; None where noise was given instead.
        neighbours: which two data sets are that hard to tell apart, in words.
        sampling: how rows were drawn: "poisson" or "fixed",
        rate: and each row's probability.
        releases: how often each client told what.
        noise: the noise multipliers.
        clip_value: how long what one row tells of objective and constraints was at most,
        clip_gradient: and its gradient.
        public_sizes: whether numbers of rows are told as they are, and are no part of what is kept private.
        deviations: of the noise on each client's ``client_objective`` and ``client_constraint``; clients × functions,
            None for what a client does not have.
    """

    epsilon: tuple[float, ...]
    delta: float
    budget: float | None
    neighbours: str
    sampling: str
    rate: float
    releases: tuple[Releases, ...]
    noise: NoiseLevels
    clip_value: float
    clip_gradient: float
    public_sizes: bool
    deviations: tuple[tuple[float | None, ...], ...] = ()

    @property
    def worst_epsilon(self) -> float:
        """The largest ε of any client."""
        return max(self.epsilon, default=0.0)

    def __str__(self) -> str:
        budget = "" if self.budget is None else f" of a budget of {number(self.budget)}"
        sizes = "numbers of rows are public" if self.public_sizes else "numbers of rows were told with noise"
        return (
            f"every row is (ε, δ)-private with ε = {number(self.worst_epsilon)}{budget} at the client that told most, "
            f"δ = {self.delta:.2g}; compared are data in which {self.neighbours}; {sizes}"
        )

    def lines(self, names: Sequence[Any]) -> list[tuple[str, str, str]]:
        """For a table: every client's name, its ε, and what it told.

        Args:
            names: the clients' labels.
        """
        told = [
            f"{own.reports:,} reports, {own.steps:,} gradients, {own.judgings} judging{'s' * (own.judgings != 1)}"
            + (", sizes" if own.sizes else "")
            for own in self.releases
        ]
        return [(str(name), number(own), what) for name, own, what in zip(names, self.epsilon, told, strict=True)]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {**asdict(self), "releases": [own._asdict() for own in self.releases], "noise": self.noise._asdict()}

    @classmethod
    def from_dict(cls, told: dict[str, Any]) -> PrivacyAccount:
        """From ``to_dict``.

        Args:
            told: what that gave.
        """
        return cls(
            **{
                **told,
                "epsilon": tuple(told["epsilon"]),
                "releases": tuple(Releases(**own) for own in told["releases"]),
                "noise": NoiseLevels(**told["noise"]),
                "deviations": tuple(tuple(own) for own in told.get("deviations", ())),
            }
        )
