"""FedJAX's agnostic federated averaging; every client is a domain."""

from __future__ import annotations

from typing import Any

import fedjax
import jax
import numpy as np
from fedjax.algorithms.agnostic_fed_avg import agnostic_federated_averaging

from case_file import CaseFile, answer

jax.config.update("jax_enable_x64", True)


def agnostic(case: CaseFile) -> list[np.ndarray]:
    """One local step on all rows; weights climb by exponentials."""
    counts = [len(rows["b"]) for rows in case.clients]
    most, many = max(counts), len(counts)

    def losses(params: Any, batch: Any, rng: Any) -> Any:
        return 0.5 * (batch["a"] @ params - batch["b"]) ** 2

    algorithm = agnostic_federated_averaging(
        losses,
        fedjax.optimizers.sgd(case.step),
        fedjax.optimizers.sgd(1.0),
        fedjax.ShuffleRepeatBatchHParams(batch_size=most, num_epochs=1, num_steps=None, seed=0),
        fedjax.PaddedBatchHParams(batch_size=most),
        init_domain_weights=[1 / many] * many,
        init_domain_window=[float(count) for count in counts],
        domain_learning_rate=many * case.numbers["dual"],
    )
    clients = [
        (
            b"%d" % i,
            fedjax.ClientDataset({"a": rows["a"], "b": rows["b"], "domain_id": np.full(len(rows["b"]), i)}),
            jax.random.PRNGKey(i),
        )
        for i, rows in enumerate(case.clients)
    ]
    state = algorithm.init(jax.numpy.zeros(case.parameters))
    iterates = [np.asarray(state.params)]
    for _ in range(case.rounds):
        state, _ = algorithm.apply(state, clients)
        iterates.append(np.asarray(state.params))
    return iterates


if __name__ == "__main__":
    answer({"agnostic": agnostic})
