"""DrJAX: one compiled round of its broadcast, map and reduce; clients and rows are drawn outside of it."""

from __future__ import annotations

from typing import Any

import drjax
import jax
import jax.numpy as jnp
import numpy as np

from jax_models import labels, losses
from serve import Arrays, Clock, Watch, Work, serve, versions


class Drjax:
    """Rounds as DrJAX's documentation writes them: ``broadcast``, ``map_fn``, ``reduce_mean``, compiled as one."""

    def __init__(self, work: Work, how: str) -> None:
        self.versions = versions("drjax", "jax")
        self.work = work
        self.x, self.y = jnp.asarray(work.x), jnp.asarray(work.y)
        self._labels = jax.jit(lambda params, x: labels(work.model, params, x))
        self.rounds = {whole: self.compiled(whole) for whole in (True, False)}

    def compiled(self, whole: bool) -> Any:
        """A round of so many clients."""
        work = self.work

        def gradient(params: Any, x: Any, y: Any) -> Any:
            return jax.grad(lambda at: losses(work.model, at, x, y, windows=True).mean())(params)

        def local(params: Any, client: Any, rows: Any) -> Any:
            def step(at: Any, drawn: Any) -> Any:
                slope = gradient(at, self.x[client][drawn], self.y[client][drawn])
                return jax.tree.map(lambda w, s: w - work.step_size * s, at, slope), None

            return jax.lax.scan(step, params, rows)[0]

        @drjax.program(partition_size=work.clients if whole else work.participants)
        def a_round(params: Any, clients: Any, rows: Any) -> Any:
            return drjax.reduce_mean(drjax.map_fn(local, (drjax.broadcast(params), clients, rows)))

        return jax.jit(a_round)

    def predict(self, params: Any, x: np.ndarray) -> np.ndarray:
        """By parts of a thousand rows."""
        return np.concatenate([np.asarray(self._labels(params, x[i : i + 1000])) for i in range(0, len(x), 1000)])

    def train(self, rounds: int, whole: bool, seed: int, watch: Watch | None, every: int) -> tuple[Arrays, float]:
        """Draws by NumPy, rounds by the compiled program."""
        work, clock, generator = self.work, Clock(), np.random.default_rng(seed)
        params = jax.tree.map(jnp.asarray, work.start)
        many = work.clients if whole else work.participants
        everything = np.broadcast_to(np.arange(work.rows), (many, work.steps, work.rows))
        for k in range(rounds):
            chosen = generator.permutation(work.clients)[:many]
            rows = everything if whole else generator.integers(work.rows, size=(many, work.steps, work.batch))
            params = self.rounds[whole](params, chosen, rows)
            if watch is not None and (k + 1) % every == 0:
                jax.block_until_ready(params)
                with clock.stopped():
                    ends = watch(params)
                if ends:
                    break
        last = jax.tree.map(np.asarray, params)
        return last, clock.seconds


if __name__ == "__main__":
    serve(Drjax)
