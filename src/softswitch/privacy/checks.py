"""What does not go with privacy, and why."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from softswitch.data.client_data import ClientData
from softswitch.oracles.federation import ClientSettings
from softswitch.privacy.settings import RecordPrivacy
from softswitch.support import checks


def batches_given(how: ClientSettings) -> dict[str, Any]:
    """What is set of how rows are drawn, for ``refuse_looks``.

    Args:
        how: how clients take part, as far as it is told.
    """
    return {
        name: size if name == "replace" else None if size == "auto" else f"{size}" for name, size in how.batches.items()
    }


def refuse_looks(given: Mapping[str, Any]) -> None:
    """Raise for settings under which a run would look at rows without counting it, or that privacy decides.

    Args:
        given: what is set, by the name of the setting; what is None or False is not.
    """
    why = {
        "held_out": "held-out rows are evaluated during the run; certify them afterwards, with privacy",
        "warm_start": "what an earlier run knew of the same rows is not counted in this one",
        "lower_bound": "it is computed on all rows",
        "regret": "f_i* tells of rows, and is not counted",
        "devices": "private clients are computed on one device, and noise is drawn for all of them there; leave it "
        "out, or let each client compute by itself: PrivateClient(…) of softswitch.flower",
        "together": "private runs are run one after the other",
        "compute_dtype": "noise is drawn in the parameters' own digits",
        "seconds": "the noise is found for a number of rounds",
        "batch_size": "the privacy's rate says which share of the rows is drawn",
        "value_batch_size": "the privacy's rate says which share of the rows is drawn",
        "replace": "the privacy's sampling says how rows are drawn",
        "eval_every": "reports are what clients tell of their rows; evaluate(…) shows the truth, which is not private",
    }
    for name, value in given.items():
        if value is not None and value is not False:
            raise ValueError(f"{name} must be left out with privacy: {why[name]}; it is {value!r}")


def check_private(clients: Any, privacy: Any, engine: str) -> None:
    """Raise unless these clients can be private in this engine.

    Args:
        clients: whose rows.
        privacy: the settings.
        engine: by name.
    """
    checks.expect("privacy", privacy, RecordPrivacy)
    if not isinstance(clients, ClientData):
        raise ValueError(
            f"clients must be a ClientData with privacy, but are {type(clients).__name__}: every row is to be drawn by "
            "a chance of its own, and is clipped alone, which is done on rows in memory. Take a part of them that fits "
            "(ε is then that of this part's rows), or let each client read its own: PrivateClient(…) of "
            "softswitch.flower"
        )
    if engine != "compiled":
        raise ValueError(
            f"engine must be 'compiled' with privacy, but is {engine!r}: over Flower each client has a privacy of its "
            "own, PrivateClient(…) of softswitch.flower"
        )
