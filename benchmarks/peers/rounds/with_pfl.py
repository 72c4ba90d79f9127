"""pfl-research's federated averaging: its simulated backend with a PyTorch model, as its benchmarks set it up."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel

from serve import Arrays, Clock, Watch, Work, serve, versions
from torch_models import Module, labels


class WithMetrics(Module):
    """pfl asks a module for its loss and for metrics."""

    def loss(self, x: torch.Tensor, y: torch.Tensor, is_eval: bool = False) -> torch.Tensor:
        """The mean over rows."""
        return super().loss(x, y)

    @torch.no_grad()
    def metrics(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, Any]:
        """The loss, weighed by the rows."""
        return {"loss": Weighted(self.loss(x, y).item() * len(x), len(x))}


class Look(TrainingProcessCallback):
    """Shows a watch the parameters now and then, off the clock."""

    def __init__(self, watch: Watch, every: int, clock: Clock) -> None:
        self.watch, self.every, self.clock = watch, every, clock

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: Any, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        """After every round."""
        if (central_iteration + 1) % self.every:
            return False, Metrics()
        with self.clock.stopped():
            return self.watch(dict(model.pytorch_model.named_parameters())), Metrics()


class Pfl:
    """Clients one after the other in one process."""

    def __init__(self, work: Work, how: str) -> None:
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "2")))
        self.versions = versions("pfl", "torch")
        self.work = work
        # Tensors before the clock starts: pfl takes them as they are, arrays it would convert for each batch.
        self.x, self.y = torch.from_numpy(work.x), torch.from_numpy(work.y).long()

    def predict(self, params: Any, x: np.ndarray) -> np.ndarray:
        """Of all rows at once."""
        return labels(self.work.model, params, torch.from_numpy(x)).numpy()

    def train(self, rounds: int, whole: bool, seed: int, watch: Watch | None, every: int) -> tuple[Arrays, float]:
        """``FederatedAveraging.run``, without evaluations."""
        work, clock = self.work, Clock()
        np.random.seed(seed)  # noqa: NPY002 - pfl's sampler draws from it
        sampler = get_user_sampler("random" if not whole else "minimize_reuse", list(range(work.clients)))
        users = FederatedDataset(lambda i: Dataset((self.x[i], self.y[i]), user_id=str(i)), sampler)
        module = WithMetrics(work.model, work.start)
        model = PyTorchModel(
            module,
            local_optimizer_create=torch.optim.SGD,
            central_optimizer=torch.optim.SGD(module.parameters(), lr=1.0),
        )
        how: dict[str, Any] = {"local_num_epochs": None, "local_num_steps": work.steps, "local_batch_size": work.batch}
        if whole:
            how = {"local_num_epochs": work.steps, "local_batch_size": None}
        FederatedAveraging().run(
            algorithm_params=NNAlgorithmParams(
                central_num_iterations=rounds,
                evaluation_frequency=rounds + 1,
                train_cohort_size=work.clients if whole else work.participants,
                val_cohort_size=0,
            ),
            backend=SimulatedBackend(training_data=users, val_data=users),
            model=model,
            model_train_params=NNTrainHyperParams(local_learning_rate=work.step_size, **how),
            model_eval_params=NNEvalHyperParams(local_batch_size=None),
            callbacks=[] if watch is None else [Look(watch, every, clock)],
            send_metrics_to_platform=False,
        )
        return {name: tensor.detach().numpy().copy() for name, tensor in module.named_parameters()}, clock.seconds


if __name__ == "__main__":
    serve(Pfl)
