"""The safe reinforcement-learning round as most would write it: Gymnasium one step after another, TRPO in PyTorch.

The same task, policy, baseline and settings as ``softswitch_experiments.tasks.safe_rl``, written on its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
import torch

import softswitch_experiments.tasks.safe_rl  # noqa: F401 (registers the environment)

Vector = Any
GAMMA, TRACE, KL_LIMIT, DAMPING, SHORTEN = 0.99, 0.97, 0.01, 1e-3, 0.8


@dataclass
class Collected:
    """One client's steps, episode after episode."""

    states: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    costs: np.ndarray
    time: np.ndarray
    ends: list[int]


def network(hidden: int = 32) -> torch.nn.Sequential:
    """The policy, with one output: the log-odds of pushing to the right."""
    return torch.nn.Sequential(
        torch.nn.Linear(4, hidden),
        torch.nn.Tanh(),
        torch.nn.Linear(hidden, hidden),
        torch.nn.Tanh(),
        torch.nn.Linear(hidden, 1),
    )


def load(policy: torch.nn.Sequential, layers: Any) -> None:
    """Give the network the weights of one of ours."""
    linear = [part for part in policy if isinstance(part, torch.nn.Linear)]
    with torch.no_grad():
        for part, layer in zip(linear, layers, strict=True):
            part.weight.copy_(torch.as_tensor(np.array(layer.weights).T))
            part.bias.copy_(torch.as_tensor(np.array(layer.bias)))


def collect(policy: torch.nn.Sequential, environment: gymnasium.Env, episodes: int) -> Collected:
    """Play episodes, one step after another."""
    states, actions, rewards, costs, time, ends = [], [], [], [], [], []
    for _ in range(episodes):
        state, _ = environment.reset()
        t, over = 0, False
        while not over:
            with torch.no_grad():
                action = int(torch.rand(()) < torch.sigmoid(policy(torch.as_tensor(state))[0]))
            states.append(state)
            actions.append(action)
            time.append(t)
            state, reward, ended, truncated, info = environment.step(action)
            rewards.append(float(reward))
            costs.append(info["cost"])
            t, over = t + 1, ended or truncated
        ends.append(len(states))
    return Collected(np.array(states), np.array(actions), np.array(rewards), np.array(costs), np.array(time), ends)


def features(states: np.ndarray, time: np.ndarray) -> np.ndarray:
    """Of the baseline."""
    scaled = np.clip(states / np.array([2.4, 1.5, np.radians(12), 1.5]), -3, 3)
    products = np.stack([scaled[:, i] * scaled[:, j] for i in range(4) for j in range(i, 4)], axis=1)
    bumps = np.exp(-0.5 * ((states[:, :1] - np.linspace(-2.4, 2.4, 13)) / 0.2) ** 2)
    powers = np.stack([time**k for k in range(4)], axis=1)
    return np.concatenate([scaled, products, bumps, powers, time[:, None] * scaled**2], axis=1)


def advantages(steps: Collected, signal: np.ndarray, horizon: int = 200) -> np.ndarray:
    """Generalised advantage estimates on a ridge regression."""
    known = features(steps.states, steps.time / horizon)
    returns, found = np.zeros(len(signal)), np.zeros(len(signal))
    begins = [0, *steps.ends[:-1]]
    for begin, end in zip(begins, steps.ends, strict=True):
        later = 0.0
        for i in reversed(range(begin, end)):
            later = returns[i] = signal[i] + GAMMA * later
    ridge = 1e-2 * (1 + len(signal) / 1000)
    value = known @ np.linalg.solve(known.T @ known + ridge * np.eye(known.shape[1]), known.T @ returns)
    for begin, end in zip(begins, steps.ends, strict=True):
        later = 0.0
        for i in reversed(range(begin, end)):
            following = value[i + 1] if i + 1 < end else 0.0
            later = found[i] = signal[i] + GAMMA * following - value[i] + GAMMA * TRACE * later
    return (found - found.mean()) / (found.std() + 1e-6)


def _flat(parts: Any) -> torch.Tensor:
    return torch.cat([part.reshape(-1) for part in parts])


def trpo(policy: torch.nn.Sequential, steps: Collected, better: np.ndarray) -> torch.Tensor:
    """One step of TRPO: the new weights, as one vector. The network keeps its own."""
    weights = list(policy.parameters())
    dtype = weights[0].dtype
    states = torch.as_tensor(steps.states, dtype=dtype)
    side = torch.as_tensor(2.0 * steps.actions - 1, dtype=dtype)
    ahead = torch.as_tensor(better, dtype=dtype)
    here = torch.nn.utils.parameters_to_vector(weights).detach().clone()
    old = policy(states)[:, 0].detach()
    log_old, right = torch.nn.functional.logsigmoid(side * old), torch.sigmoid(old)

    def surrogate_and_kl() -> tuple[torch.Tensor, torch.Tensor]:
        new = policy(states)[:, 0]
        ratio = torch.exp(torch.nn.functional.logsigmoid(side * new) - log_old)
        kl = right * (old - new) + torch.nn.functional.softplus(new) - torch.nn.functional.softplus(old)
        return (ratio * ahead).mean(), kl.mean()

    gradient = _flat(torch.autograd.grad(surrogate_and_kl()[0], weights)).detach()
    slope = _flat(torch.autograd.grad(surrogate_and_kl()[1], weights, create_graph=True))

    def product(v: torch.Tensor) -> torch.Tensor:
        return _flat(torch.autograd.grad(slope @ v, weights, retain_graph=True)).detach() + DAMPING * v

    natural = _conjugate_gradient(product, gradient)
    full = natural * torch.sqrt(KL_LIMIT / (0.5 * natural @ product(natural)))
    found = here
    for attempt in range(10):
        torch.nn.utils.vector_to_parameters(here + SHORTEN**attempt * full, weights)
        with torch.no_grad():
            surrogate, kl = surrogate_and_kl()
        if surrogate > 0 and kl <= KL_LIMIT:
            found = here + SHORTEN**attempt * full
            break
    torch.nn.utils.vector_to_parameters(here, weights)
    return found


def _conjugate_gradient(product: Callable[[torch.Tensor], torch.Tensor], target: torch.Tensor) -> torch.Tensor:
    x, residual, along = torch.zeros_like(target), target.clone(), target.clone()
    squared = residual @ residual
    for _ in range(10):
        image = product(along)
        length = squared / (along @ image + 1e-12)
        x, residual = x + length * along, residual - length * image
        after = residual @ residual
        along, squared = residual + after / (squared + 1e-12) * along, after
    return x


def round_of_all(
    policy: torch.nn.Sequential, environments: list[gymnasium.Env], budgets: np.ndarray, alpha: float, episodes: int
) -> int:
    """One federated round: report, weigh, switch, improve, average. Returns the environment steps played."""
    collected = [collect(policy, environment, episodes) for environment in environments]
    discounts = [GAMMA**own.time for own in collected]
    f = np.array([-(d * own.rewards).sum() / episodes for d, own in zip(discounts, collected, strict=True)])
    g = np.array([(d * own.costs).sum() / episodes for d, own in zip(discounts, collected, strict=True)]) - budgets
    p, q = (np.exp(alpha * (v - v.max())) / np.exp(alpha * (v - v.max())).sum() for v in (f, g))
    feasible = q @ g <= 0
    here = torch.nn.utils.parameters_to_vector(policy.parameters()).detach().clone()
    total = torch.zeros_like(here)
    for weight, own in zip(p if feasible else q, collected, strict=True):
        signal = own.rewards if feasible else -own.costs
        total += float(weight) * (trpo(policy, own, advantages(own, signal)) - here)
    torch.nn.utils.vector_to_parameters(here + total, policy.parameters())
    return sum(len(own.actions) for own in collected)
