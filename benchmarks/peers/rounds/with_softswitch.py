"""softswitch's rounds, through ``solve``: with equal weights and no bound, which is federated averaging, or as it is.

Words on the command line: "averaging"; "switching", the method itself with a bound on the loss of one class; "call",
averaging, timed with all that a call of ``solve`` does beside rounds: checks, and judging start and answer on all rows.
"""

from __future__ import annotations

import time
from typing import Any

import jax
import numpy as np

import softswitch as ss
from jax_models import labels, losses
from serve import Arrays, Clock, Watch, Work, serve, versions
from softswitch.engine import compiled

NO_BOUND = 1e30


class Softswitch:
    """Through the library's front door; the reports of f and g are made, though averaging has no use for them."""

    def __init__(self, work: Work, how: str) -> None:
        self.versions = versions("softswitch", "jax")
        self.work, self.all_of_it = work, how == "call"
        rows = {"x": work.x.reshape(-1, *work.x.shape[2:]), "y": work.y.reshape(-1)}
        self.data = ss.ClientData.from_arrays(rows, np.repeat(np.arange(work.clients), work.rows))

        def objective(params: Any, batch: Any) -> Any:
            return (batch["weight"] * losses(work.model, params, batch["x"], batch["y"], windows=True)).sum()

        def constraint(params: Any, batch: Any) -> Any:
            loss = losses(work.model, params, batch["x"], batch["y"], windows=True)
            return ss.mean_over(loss, batch["weight"] * (batch["y"] == 1))

        self.problem = ss.Problem(objective, constraint, work.start)
        # Averaging is a server's step of E times the clients', along the mean of their gradients' means.
        sizes = {"step_size": work.step_size * work.steps, "local_step_size": work.step_size}
        self.method: ss.AverageSGM | ss.SoftmaxSGM
        if how == "switching":
            self.method = ss.SoftmaxSGM(alpha=20.0, tolerance=0.5, **sizes)
        else:
            self.method = ss.AverageSGM(tolerance=NO_BOUND, **sizes)
        self._labels = jax.jit(lambda params, x: labels(work.model, params, x))

    def predict(self, params: Any, x: np.ndarray) -> np.ndarray:
        """By parts of a thousand rows."""
        parts = [np.asarray(self._labels(params, x[i : i + 1000])) for i in range(0, len(x), 1000)]
        return np.concatenate(parts)

    def train(self, rounds: int, whole: bool, seed: int, watch: Watch | None, every: int) -> tuple[Arrays, float]:
        """One call of ``solve``; where it is looked at, its chunks are as short as that, compiled beforehand."""
        if watch is None:
            return self._solve(rounds, whole, seed, None)
        usual, compiled.CHUNK_ROUNDS = compiled.CHUNK_ROUNDS, every
        try:
            self._solve(every, whole, seed, None)
            return self._solve(rounds, whole, seed, watch)
        finally:
            compiled.CHUNK_ROUNDS = usual

    def _solve(self, rounds: int, whole: bool, seed: int, watch: Watch | None) -> tuple[Arrays, float]:
        work, clock = self.work, Clock()
        in_rounds = looking = 0.0

        def looked(news: Any) -> bool:
            nonlocal in_rounds, looking
            in_rounds = news.seconds - looking
            began = time.perf_counter()
            with clock.stopped():
                ends = watch is not None and watch(news.state.params)
            looking += time.perf_counter() - began
            return ends

        result = ss.solve(
            self.problem,
            self.data,
            self.method,
            rounds=rounds,
            seed=seed,
            sampling=ss.Sampling(
                local_steps=work.steps,
                participation=1.0 if whole else work.participants / work.clients,
                batch_size=None if whole else work.batch,
            ),
            output=ss.Output(iterate="last", lower_bound=False),
            logging=ss.Logging(eval_every=0, callbacks=[looked], progress=False),
        )
        last = jax.tree.map(np.asarray, result.last)
        return last, clock.seconds if self.all_of_it else in_rounds


if __name__ == "__main__":
    serve(Softswitch)
