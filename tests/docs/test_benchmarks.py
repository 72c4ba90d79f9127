"""The benchmarks compare implementations of the same algorithm."""

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from benchmarks import gymnasium_loop
from benchmarks.neyman_pearson import torch_clients
from benchmarks.torch_loop import Setting, federated, lean
from softswitch import evaluate
from softswitch_experiments.tasks.neyman_pearson import breast_cancer
from softswitch_experiments.tasks.safe_rl.advantages import advantages
from softswitch_experiments.tasks.safe_rl.episodes import Episodes
from softswitch_experiments.tasks.safe_rl.policy import init_policy, logit
from softswitch_experiments.tasks.safe_rl.trpo import TrustRegion, improve


def test_both_loops_are_equal():
    clients = torch_clients(breast_cancer(20).train)
    for setting in (Setting(30, 1, 20, alpha=50.0), Setting(30, 3, 10, alpha=50.0)):
        np.testing.assert_allclose(lean(clients, setting), federated(clients, setting), rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_loop_matches_solve():
    """The full loop on breast cancer ends feasible at every client, as solve does."""
    task = breast_cancer(20)
    result = lean(torch_clients(task.train), Setting(400, 1, 20))
    objective, constraint = evaluate(task.problem, task.train, result.numpy())
    assert constraint.max() <= 0.1
    assert objective.max() < 0.6
    assert torch.isfinite(result).all()


@pytest.mark.slow
def test_sequential_trpo_step_matches(x64_isolated):
    """Compare our step with PyTorch's on the same Gymnasium episodes."""
    torch.manual_seed(0)
    policy = init_policy(jax.random.key(0), (32, 32))
    player, network = gymnasium_loop.network(), gymnasium_loop.network().double()
    gymnasium_loop.load(player, policy)
    gymnasium_loop.load(network, policy)
    environment = gymnasium.make("softswitch/ConstrainedCartPole-v0", planet="mars")
    environment.reset(seed=0)
    steps = gymnasium_loop.collect(player, environment, episodes=6)
    lengths = np.diff([0, *steps.ends])
    horizon = 200
    shape = (horizon, len(lengths))
    mask = np.arange(horizon)[:, None] < lengths
    columns = {}
    for name in ("states", "actions", "costs"):
        reference = getattr(steps, name)
        columns[name] = np.zeros((*shape, *reference.shape[1:]))
        for e, (end, length) in enumerate(zip(steps.ends, lengths, strict=True)):
            columns[name][:length, e] = reference[end - length : end]
    states = jnp.asarray(columns["states"], jnp.float64)
    episodes = Episodes(
        states, jnp.asarray(columns["actions"], bool), jnp.asarray(mask), columns["costs"], logit(policy, states)
    )
    for sequential, batched in ((steps.rewards, episodes.rewards), (-steps.costs, -episodes.costs)):
        expected = gymnasium_loop.trpo(network, steps, gymnasium_loop.advantages(steps, sequential))
        improved = improve(policy, episodes, advantages(episodes, batched, 0.99, 0.97), TrustRegion())
        layers = [array for layer in improved for array in (layer.weights.T, layer.bias)]
        np.testing.assert_allclose(np.concatenate([np.ravel(array) for array in layers]), expected.numpy(), rtol=1e-5)


@pytest.mark.slow
def test_compression_reduces_bytes():
    """Compression reduces the bytes of whole messages."""
    pytest.importorskip("flwr")
    from benchmarks import compression

    uncompressed = compression.course(0, None, 5, rows=60)
    compressed = compression.course(0, compression.WAYS["5 % in 4 bits up, 10 % down"], 5, rows=60)
    assert 2 * 5 * 10 * 6529 * 4 < uncompressed[-1].up + uncompressed[-1].down < 2.1 * 5 * 10 * 6529 * 4
    assert uncompressed[-1].up > 20 * compressed[-1].up
