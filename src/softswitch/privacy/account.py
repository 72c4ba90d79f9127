"""What a run cost its clients' rows: ε of each client, and what it was spent on."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from softswitch.privacy.releases import NoiseLevels, Releases
from softswitch.support.text import number


@dataclass(frozen=True)
class PrivacyAccount:
    """What was told of rows in a run, and how much any single row can be known by it.

    Over Flower clients count for themselves, and tell only what they have spent and ``deviations``: the rest is then
    left out.

    Attributes:
        epsilon: ε of each client, of all that it told; the judging of the answer is part of it. None for a client that
            keeps no count: it promises nothing.
        delta: δ of all of them.
        neighbours: which two data sets are that hard to tell apart, in words.
        budget: the ε that a client may spend; None where noise was given instead.
        sampling: how rows were drawn: "poisson" or "fixed",
        rate: and each row's probability.
        releases: how often each client told what.
        noise: the noise multipliers.
        clip_value: how long what one row tells of objective and constraints was at most,
        clip_gradient: and its gradient.
        public_sizes: whether numbers of rows are told as they are, and are no part of what is kept private.
        deviations: of the noise on each client's ``client_objective`` and ``client_constraint``; clients × functions,
            None for what a client does not have, or where it says nothing of noise.
    """

    epsilon: tuple[float | None, ...]
    delta: float
    neighbours: str
    budget: float | None = None
    sampling: str | None = None
    rate: float | None = None
    releases: tuple[Releases, ...] = ()
    noise: NoiseLevels | None = None
    clip_value: float | None = None
    clip_gradient: float | None = None
    public_sizes: bool | None = None
    deviations: tuple[tuple[float | None, ...], ...] = ()

    @property
    def worst_epsilon(self) -> float:
        """The largest ε of any client that keeps count."""
        return max((own for own in self.epsilon if own is not None), default=0.0)

    @property
    def of_values(self) -> str:
        """What is to be known of the values that clients tell of an answer, in words."""
        whose = "of clients that keep their rows private" if None in self.epsilon else "on clients' data"
        known = [one for own in self.deviations for one in own[1:] if one is not None]
        noise = f"noise of a deviation of up to {max(known):.2g}" if known else "noise"
        return f"values {whose} are of clipped rows, with {noise}"

    def __str__(self) -> str:
        budget = "" if self.budget is None else f" of a budget of {number(self.budget)}"
        said = (
            f"every row is (ε, δ)-private with ε = {number(self.worst_epsilon)}{budget} at the client that told most, "
            f"δ = {self.delta:.2g}; compared are data in which {self.neighbours}"
        )
        if self.public_sizes is not None:
            sizes = "numbers of rows are public" if self.public_sizes else "numbers of rows were told with noise"
            said = f"{said}; {sizes}"
        without = sum(own is None for own in self.epsilon)
        return f"{said}; but {without} of {len(self.epsilon)} clients promise nothing" if without else said

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        noise = None if self.noise is None else self.noise._asdict()
        return {**asdict(self), "releases": [own._asdict() for own in self.releases], "noise": noise}

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
                "noise": None if told["noise"] is None else NoiseLevels(**told["noise"]),
                "deviations": tuple(tuple(own) for own in told["deviations"]),
            }
        )
