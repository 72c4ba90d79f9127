"""FedJAX's federated averaging: ``fedjax.algorithms.fed_avg`` with its own sampler, as its documentation shows it."""

from __future__ import annotations

from typing import Any

import fedjax
import jax
import numpy as np

from jax_models import labels, losses
from serve import Arrays, Clock, Watch, Work, serve, versions


class Fedjax:
    """A client after the other, each local step a compiled call: FedJAX's backend for processors."""

    def __init__(self, work: Work, how: str) -> None:
        self.versions = versions("fedjax", "jax")
        self.work = work
        self.clients = fedjax.InMemoryFederatedData(
            {b"%d" % i: {"x": work.x[i], "y": work.y[i]} for i in range(work.clients)}
        )
        self._labels = jax.jit(lambda params, x: labels(work.model, params, x))

        def loss(params: Any, batch: Any, rng: Any) -> Any:
            return losses(work.model, params, batch["x"], batch["y"]).mean()

        gradient = jax.grad(loss)
        client, server = fedjax.optimizers.sgd(work.step_size), fedjax.optimizers.sgd(1.0)
        # Made once: what is compiled for it is kept with it.
        self.algorithms = {
            whole: fedjax.algorithms.fed_avg.federated_averaging(
                gradient,
                client,
                server,
                fedjax.ShuffleRepeatBatchHParams(
                    batch_size=work.rows if whole else work.batch, num_epochs=None, num_steps=work.steps, seed=0
                ),
            )
            for whole in (True, False)
        }

    def predict(self, params: Any, x: np.ndarray) -> np.ndarray:
        """By parts of a thousand rows."""
        return np.concatenate([np.asarray(self._labels(params, x[i : i + 1000])) for i in range(0, len(x), 1000)])

    def train(self, rounds: int, whole: bool, seed: int, watch: Watch | None, every: int) -> tuple[Arrays, float]:
        """Sample and apply."""
        work, algorithm = self.work, self.algorithms[whole]
        many = work.clients if whole else work.participants
        clock = Clock()
        sampler = fedjax.client_samplers.UniformGetClientSampler(self.clients, many, seed)
        state = algorithm.init(jax.tree_util.tree_map(jax.numpy.asarray, work.start))
        for k in range(rounds):
            sampler.set_round_num(k)
            state, _ = algorithm.apply(state, sampler.sample())
            if watch is not None and (k + 1) % every == 0:
                jax.block_until_ready(state.params)
                with clock.stopped():
                    ends = watch(state.params)
                if ends:
                    break
        last = jax.tree_util.tree_map(np.asarray, state.params)
        return last, clock.seconds


if __name__ == "__main__":
    serve(Fedjax)
