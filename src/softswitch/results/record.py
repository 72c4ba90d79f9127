"""What a round leaves behind, as engines write it: arrays, stacked over rounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from softswitch.oracles.evaluation import ClientSummary


class RecordedClients(NamedTuple):
    """What the participants of a round told.

    Attributes:
        clients: I_k, as indices of clients; −1 is an empty place.
        objective: f_i of each.
        constraint: g_i of each.
        metrics: further numbers that each told, by name.
        outcomes: what became of each, where clients can be lost; else None.
        epsilon: ε that each says it has spent by now, where clients keep count for themselves, NaN for those that do
            not; else None.
    """

    clients: Int[Array, " m"]
    objective: Float[Array, " m"]
    constraint: Float[Array, "m c"]
    metrics: dict[str, Float[Array, " m"]]
    outcomes: Int[Array, " m"] | None = None
    epsilon: Float[Array, " m"] | None = None


class Record(NamedTuple):
    """What a round leaves in the history.

    Attributes:
        objective: F over the sampled clients' reports, max_i f_i.
        constraint: G likewise.
        criterion: what the switch compared with λ.
        feasible: the switch bit.
        worst_client: the client that reported the largest f_i.
        full: the worst and the mean of all clients at w_k, on all their rows; NaN where it was not evaluated.
        held_out: the same on rows not trained on; None where there are none.
        absent: how many participants had no objective, or lacked a constraint.
        rows: rows that the clients hold together, where a batch is all of them; else None.
        clients: what each participant told; None where that is not recorded.
        unheard: how many clients the server has not heard yet, where it remembers them; else None.
        oldest: how many rounds old the oldest report is that it remembers; else None.
        gradients: on how many rows gradients were taken, where that is not what the clients' rounds usually cost;
        values: and on how many values were.
        traffic: how many bytes went up, and how many down, where messages are compressed; else None. Each is a number
            of 2^15 bytes and what is over: ``bit_packing.in_one``.
        stationarity: the measure of the stage that the round ended; NaN where it ended none, None without stages.
    """

    objective: Float[Array, ""]
    constraint: Float[Array, ""]
    criterion: Float[Array, ""]
    feasible: Bool[Array, ""]
    worst_client: Int[Array, ""]
    full: ClientSummary
    held_out: ClientSummary | None
    absent: Int[Array, ""]
    rows: Int[Array, ""] | None
    clients: RecordedClients | None
    unheard: Int[Array, ""] | None = None
    oldest: Int[Array, ""] | None = None
    gradients: Int[Array, ""] | None = None
    values: Int[Array, ""] | None = None
    traffic: Int[Array, "2 2"] | None = None
    stationarity: Float[Array, ""] | None = None


def join(records: Sequence[Record], rounds: int) -> Record:
    """Chunks of records as one, the first so many rounds of them, on the host."""
    if len(records) == 1:
        only: Record = jax.tree.map(lambda part: np.asarray(part)[:rounds], records[0])
        return only
    joined: Record = jax.tree.map(
        lambda *parts: np.concatenate([np.asarray(part) for part in parts])[:rounds], *records
    )
    return joined
