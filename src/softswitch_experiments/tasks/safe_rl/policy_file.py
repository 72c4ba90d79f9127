"""A policy in a file: one array a layer and kind, in NumPy's own format."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from softswitch.support.files import read_npz
from softswitch_experiments.tasks.safe_rl.policy import STATE_SIZE, Layer, Policy, logit


def save(policy: Policy, file: Path) -> None:
    """Write the policy to ``file``, an .npz."""
    arrays = {
        f"{i}.{name}": np.asarray(array) for i, layer in enumerate(policy) for name, array in layer._asdict().items()
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    np.savez(file, **arrays)  # type: ignore[arg-type]


def load(file: Path) -> Policy:
    """Read a policy from ``file``."""
    try:
        found = {name: jnp.asarray(array) for name, array in read_npz(file).items()}
        policy = [Layer(found[f"{i}.weights"], found[f"{i}.bias"]) for i in range(len(found) // 2)]
        if jax.eval_shape(logit, policy, jnp.zeros(STATE_SIZE)).shape != ():
            raise ValueError("it has more than one output")
        return policy
    except (OSError, ValueError, TypeError, LookupError, AttributeError) as error:
        raise ValueError(
            f"{file} must be a policy written by softswitch (.npz), but could not be read: {error}"
        ) from error
