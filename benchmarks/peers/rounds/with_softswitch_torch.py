"""softswitch's rounds of a PyTorch module, through ``solve``, with equal weights and no bound: federated averaging."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import torch
from torch.nn import functional
from torch.utils.data import TensorDataset

import softswitch as ss
from serve import Arrays, Clock, Watch, Work, serve, versions
from torch_models import Module, labels, tensors

NO_BOUND = 1e30


class SoftswitchTorch:
    """A module and data sets; the reports of f and g are made, though averaging has no use for them."""

    def __init__(self, work: Work, _: str) -> None:
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "2")))
        self.versions = versions("softswitch", "torch")
        self.work = work
        x, y = torch.from_numpy(work.x), torch.from_numpy(work.y).long()
        self.clients = {i: TensorDataset(x[i], y[i]) for i in range(work.clients)}

        def losses(module: Any, batch: Any) -> torch.Tensor:
            scores = module(batch[0])
            if work.model == "cnn":
                return functional.cross_entropy(scores, batch[1], reduction="none")
            return functional.binary_cross_entropy_with_logits(scores, batch[1].to(scores.dtype), reduction="none")

        def constraint(module: Any, batch: Any) -> torch.Tensor:
            chosen = (batch[1] == 1).float()
            return (losses(module, batch) * chosen).sum() / chosen.sum().clamp(min=1)

        self.functions = (lambda module, batch: losses(module, batch).mean()), constraint
        sizes = {"step_size": work.step_size * work.steps, "local_step_size": work.step_size}
        self.method = ss.AverageSGM(tolerance=NO_BOUND, **sizes)

    def predict(self, params: Any, x: np.ndarray) -> np.ndarray:
        """Of all rows at once."""
        return labels(self.work.model, tensors(params), torch.from_numpy(x)).numpy()

    def train(self, rounds: int, whole: bool, seed: int, watch: Watch | None, every: int) -> tuple[Arrays, float]:
        """One call of ``solve``; the time is that of its rounds."""
        work, clock = self.work, Clock()
        seconds = looking = 0.0

        def look(chunk: Any) -> bool:
            nonlocal seconds, looking
            seconds, start = chunk.seconds - looking, clock.seconds
            ends = watch is not None and watch(chunk.state.params)
            looking += clock.seconds - start
            return ends

        problem = ss.Problem(*self.functions, Module(work.model, work.start))
        sampling = ss.Sampling(
            local_steps=work.steps,
            participation=1.0 if whole else work.participants / work.clients,
            batch_size=None if whole else work.batch,
        )
        options: dict[str, Any] = {"rounds": rounds, "seed": seed, "sampling": sampling}
        options |= {"output": ss.Output(iterate="last")}
        options |= {"logging": ss.Logging(eval_every=0, callbacks=[look], progress=False)}
        result = ss.solve(problem, ss.TorchData(self.clients), self.method, **options)
        return {name: np.asarray(value) for name, value in result.last.items()}, seconds


if __name__ == "__main__":
    serve(SoftswitchTorch)
