"""The records that engines write: arrays of every round."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from softswitch.oracles.evaluation import ClientSummary


class RecordedClients(NamedTuple):
    """The reports of the participants of a round; see ``ClientHistory``."""

    clients: Int[Array, " m"]
    objective: Float[Array, " m"]
    constraint: Float[Array, "m c"]
    metrics: dict[str, Float[Array, " m"]]
    outcomes: Int[Array, " m"] | None = None
    epsilon: Float[Array, " m"] | None = None


class Record(NamedTuple):
    """One round of a history; see ``History``.

    Attributes:
        full: The clients' summary at w_k on all their rows; NaN if it was not evaluated.
        rows: Number of rows of the participants, if a batch is all of them; else None.
        values: Number of rows of values, if it differs from the oracle's cost; else None.
        traffic: Bytes sent up and down, if messages are compressed; else None. Each is a number of 2^15 bytes and a
            remainder, see ``compressors.in_one``.
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
    values: Int[Array, ""] | None = None
    traffic: Int[Array, "2 2"] | None = None


def join(records: Sequence[Record], rounds: int) -> Record:
    """Concatenate chunks of records on the host and keep the first ``rounds`` rounds."""
    if len(records) == 1:
        only: Record = jax.tree.map(lambda part: np.asarray(part)[:rounds], records[0])
        return only
    joined: Record = jax.tree.map(
        lambda *parts: np.concatenate([np.asarray(part) for part in parts])[:rounds], *records
    )
    return joined
