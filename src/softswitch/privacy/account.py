"""PrivacyAccount: the privacy loss of a run."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from softswitch.privacy.releases import NoiseLevels, Releases
from softswitch.support.text import format_number


@dataclass(frozen=True)
class PrivacyAccount:
    """What a run released about rows, and the (ε, δ) of it.

    Over Flower, clients keep their own accounts and report only what they have spent and ``deviations``; the remaining
    fields then have their defaults.

    Attributes:
        epsilon: ε of each client, including the evaluation of the answer; None for a client that is not private.
        delta: δ of all clients.
        neighbours: Definition of neighbouring data sets, as text.
        budget: ε that a client may spend; None if the noise was given instead.
        sampling: How rows were drawn, "poisson" or "fixed".
        rate: Probability of each row to be drawn.
        releases: Number of releases of each client.
        noise: Noise multipliers.
        clip_value: Clipping norm of a row's values.
        clip_gradient: Clipping norm of a row's gradient.
        public_sizes: Whether the numbers of rows are public, and therefore not protected.
        deviations: Standard deviation of the noise on each client's ``client_objective`` and ``client_constraint``,
            clients × functions; None for a function that a client lacks, or if the deviation is unknown.
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
        """Largest ε of the private clients."""
        return max((epsilon for epsilon in self.epsilon if epsilon is not None), default=0.0)

    @property
    def value_note(self) -> str:
        """How the reported values of the answer differ from the exact ones, as text."""
        clients = "of private clients" if None in self.epsilon else "of clients"
        known = [one for deviations in self.deviations for one in deviations[1:] if one is not None]
        noise = f"noise with a standard deviation of up to {max(known):.2g}" if known else "noise"
        return f"values {clients} are computed on clipped rows, with {noise}"

    def __str__(self) -> str:
        budget = "" if self.budget is None else f" of a budget of {format_number(self.budget)}"
        text = (
            f"every row has (ε, δ)-differential privacy with ε = {format_number(self.worst_epsilon)}{budget} at the "
            "client "
            f"with the largest ε, and δ = {self.delta:.2g}; neighbouring data sets: {self.neighbours}"
        )
        if self.public_sizes is not None:
            text += "; numbers of rows are " + ("public" if self.public_sizes else "released with noise")
        without = sum(epsilon is None for epsilon in self.epsilon)
        return f"{text}; {without} of {len(self.epsilon)} clients are not private" if without else text

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        noise = None if self.noise is None else self.noise._asdict()
        return {**asdict(self), "releases": [releases._asdict() for releases in self.releases], "noise": noise}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> PrivacyAccount:
        """Restore an account.

        Args:
            values: Result of ``to_dict``.
        """
        return cls(
            **{
                **values,
                "epsilon": tuple(values["epsilon"]),
                "releases": tuple(Releases(**releases) for releases in values["releases"]),
                "noise": None if values["noise"] is None else NoiseLevels(**values["noise"]),
                "deviations": tuple(map(tuple, values["deviations"])),
            }
        )
