"""A run without some of its clients: what is remembered of them, and a history of the others."""

from __future__ import annotations

from dataclasses import replace

import jax.numpy as jnp
import numpy as np

from softswitch.methods.consistency import Consistency
from softswitch.methods.memory import LEFT_OUT, Remembered, nothing_remembered
from softswitch.results.history import ClientOutcome, History
from softswitch.support.arrays import some


def without(remembered: Remembered, clients: list[int]) -> Remembered:
    """What is remembered, as if some clients had never been heard.

    Args:
        remembered: of all clients.
        clients: the indices of those to forget.
    """
    known = [index for index in clients if index < len(remembered.heard_at)]
    if not known:
        return remembered
    statistics = None if remembered.sums is None else remembered.sums.shape[1]
    dtype = remembered.objective.dtype
    nothing = nothing_remembered(len(known), remembered.constraint.shape[1], statistics, dtype)
    at = jnp.asarray(known, jnp.int32)
    fields = ("objective", "constraint", "asked_at", "times", "travelled_at")
    changed = {name: getattr(remembered, name).at[at].set(getattr(nothing, name)) for name in fields}
    changed["heard_at"] = remembered.heard_at.at[at].set(LEFT_OUT)  # nobody waits for it to be heard
    if remembered.sums is not None:
        changed["sums"] = remembered.sums.at[at].set(0)
    if remembered.forecasts is not None:
        changed["forecasts"] = remembered.forecasts.without(at)
    return remembered._replace(**changed)


def memory_of(remembered: Remembered, kept: list[int]) -> Remembered:
    """What is remembered of some clients alone.

    Args:
        remembered: of all clients.
        kept: the indices of those.
    """
    known = [index for index in kept if index < len(remembered.heard_at)]
    if len(known) == len(remembered.heard_at):
        return remembered
    at, foreseen = jnp.asarray(known, jnp.int32), remembered.forecasts
    own = some(remembered._replace(forecasts=None), at)
    own = own._replace(forecasts=None if foreseen is None else foreseen.of(at))
    return own._replace(order=jnp.arange(len(known), dtype=jnp.int32), pass_number=jnp.int32(-1))


def consistency_of(known: Consistency, kept: list[int]) -> Consistency:
    """What is known of some clients' consistency alone.

    Args:
        known: of all clients.
        kept: the indices of those.
    """
    own = jnp.asarray([index for index in kept if index < len(known.value)], jnp.int32)
    return some(known, own)


def history_of(history: History, kept: list[int]) -> History:
    """The history as it concerns some clients, by their new indices; the others' places are empty.

    What those others did to the model stays: F, G and the switch of a round are as they were.

    Args:
        history: of all clients.
        kept: the indices of those.
    """
    told = history.per_client
    assert told is not None
    if kept == list(range(len(kept))) and told.clients.max(initial=-1) < len(kept):
        return history
    most = max([told.clients.max(initial=-1), history.worst_client.max(initial=-1), *kept]) + 1
    places = np.full(most + 1, -1)  # the last is for −1 itself
    places[kept] = np.arange(len(kept))
    clients = places[told.clients]
    gone = clients < 0
    own = replace(
        told,
        clients=clients.astype(told.clients.dtype),
        objective=np.where(gone, np.nan, told.objective),
        constraint=np.where(gone[..., None], np.nan, told.constraint),
        outcomes=None if told.outcomes is None else np.where(gone, ClientOutcome.EMPTY, told.outcomes),
        epsilon=None if told.epsilon is None else np.where(gone, np.nan, told.epsilon),
    )
    worst = places[history.worst_client].astype(history.worst_client.dtype)
    return replace(history, per_client=own, worst_client=worst)
