"""A client's side: the parameters it has, and what its directions have left out so far, in Flower's context."""

from __future__ import annotations

from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message

from softswitch.flower import codec as codes
from softswitch.flower import messages as wire

ERRORS, NEXT, ROUNDS = "errors", "errors if counted", "rounds of the errors"
"""The records in a client's context."""
MOST_CHANGES = 10**6


class OutdatedParamsError(Exception):
    """A client does not have the parameters that a change is of; it takes part once it is sent whole ones."""


def read_params(message: Message, context: Context) -> tuple[ArrayRecord, list[wire.Arrays]]:
    """The round's parameters: as they came, or those that the client has with the changes since.

    The second is the last that it came by before them, where there is such.

    Args:
        message: the server's.
        context: Flower's.
    """
    change = message.content.get(codes.CHANGE)
    if not isinstance(change, ConfigRecord):
        whole: Any = message.content.get(wire.PARAMS)
        return whole, []
    told, held = change.get(codes.DIGEST), context.state.get(wire.PARAMS)
    if not isinstance(held, ArrayRecord):
        raise OutdatedParamsError("it has no parameters: it is new, or was started again")
    params = wire.from_record(held)
    if codes.digest(params) == told:  # they came already, and its answer was lost
        return held, []
    sent = change.get(codes.CODES, [])
    if not isinstance(sent, list) or len(sent) > MOST_CHANGES:
        raise wire.InvalidMessageError("there are no changes of the parameters")
    by = codes.parse_compressor(wire.get_config(message.content, wire.SETTINGS), codes.DOWN)
    like = wire.array_specs(params)
    came_by: list[wire.Arrays] = []
    for code in sent:
        came_by = [params]
        params = codes.apply_change(params, codes.decode(by, code, like))
    if codes.digest(params) != told:
        raise OutdatedParamsError("its parameters are not those that the change is of")
    return wire.to_record(params), came_by


def settle(settings: ConfigRecord, context: Context) -> None:
    """Take note of which direction counted last: only then what it left out is owed.

    A server that was resumed may know of fewer rounds than the client: then nothing is owed.

    Args:
        settings: of the round.
        context: Flower's.
    """
    if codes.LAST_COUNTED not in settings:
        return
    counted: Any = settings[codes.LAST_COUNTED]
    if not isinstance(counted, int) or counted < -1:
        raise wire.InvalidMessageError(f"its {codes.LAST_COUNTED} must be a round, or −1, but is {counted!r:.80}")
    rounds: Any = context.state.get(ROUNDS) or {"settled": -1, "next": -1}
    errors, after = context.state.get(ERRORS), context.state.get(NEXT)
    if counted >= 0 and rounds["next"] == counted and isinstance(after, ArrayRecord):
        context.state[ERRORS] = after
    elif rounds["settled"] != counted or not isinstance(errors, ArrayRecord):
        context.state[ERRORS] = wire.to_record({})
    context.state[NEXT] = wire.to_record({})
    context.state[ROUNDS] = ConfigRecord({"settled": counted, "next": -1})


def compress_direction(
    direction: wire.Arrays, settings: ConfigRecord, decision: ConfigRecord, context: Context
) -> ConfigRecord:
    """A direction with what the client owes, compressed; what that leaves out is owed once the direction counts.

    Args:
        direction: u_i.
        settings: of the round.
        decision: what the round descends on.
        context: Flower's.
    """
    by = codes.parse_compressor(settings, codes.UP)
    vector, held = codes.to_vector(direction), context.state.get(ERRORS)
    if not np.isfinite(vector).all():
        return ConfigRecord({codes.CODE: b""})
    errors = wire.from_record(held) if isinstance(held, ArrayRecord) else {}
    apart = "feasible" in decision and wire.read_bool(settings, codes.APART)
    branch = "constraint" if apart and not decision["feasible"] else "objective"
    before = errors.get(branch)
    if before is not None and before.shape == vector.shape:
        vector = before.astype(vector.dtype) + vector
    code = by.encode(vector)
    left = vector - by.decode(code, len(vector), vector.dtype)
    rounds: Any = context.state.get(ROUNDS) or {"settled": -1}
    context.state[NEXT] = wire.to_record({**errors, branch: left})
    context.state[ROUNDS] = ConfigRecord(
        {"settled": rounds["settled"], "next": wire.read_int(settings, "round", 2**63 - 1)}
    )
    return ConfigRecord({codes.CODE: code})
