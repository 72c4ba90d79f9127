"""Animated pictures of episodes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import gymnasium
import jax
import numpy as np
import pygame  # noqa: F401 (Gymnasium needs it to render)
from PIL import Image, ImageDraw

from softswitch.support.files import open_atomically
from softswitch_experiments.tasks.safe_rl.policy import Policy, logit

SIZE = (420, 280)
DISCOUNT = 0.99


class Shown(NamedTuple):
    """Outcome of an episode, and its picture."""

    planet: str
    steps: int
    cost: int
    discounted_cost: float
    file: Path


def show(policy: Policy, planet: str, seed: int, file: Path) -> Shown:
    """Play one episode of the policy in the Gymnasium environment of a planet, and write it to a GIF file."""
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # render without a screen
    environment = gymnasium.make("softswitch/ConstrainedCartPole-v0", planet=planet, render_mode="rgb_array")
    generator = np.random.default_rng(seed)
    probability = jax.jit(lambda policy, state: jax.nn.sigmoid(logit(policy, state)))
    state, _ = environment.reset(seed=seed)
    frames, steps, cost, discounted, over = [], 0, 0, 0.0, False
    while not over:
        frames.append(_make_frame(environment.render(), f"{planet}   step {steps}   cost {cost}"))
        action = int(generator.random() < float(probability(policy, state)))
        state, _, terminated, truncated, info = environment.step(action)
        discounted += info["cost"] * DISCOUNT**steps
        steps, cost, over = steps + 1, cost + int(info["cost"]), terminated or truncated
    frames.append(_make_frame(environment.render(), f"{planet}   step {steps}   cost {cost}"))
    environment.close()
    file.parent.mkdir(parents=True, exist_ok=True)
    shown_frames = frames[::2] + [frames[-1]] * 25  # 25 frames per second, and a pause of one second at the end
    options = {"append_images": shown_frames[1:], "duration": 40, "loop": 0, "optimize": True}
    with open_atomically(file, durable=False) as stream:
        shown_frames[0].save(stream, format="GIF", save_all=True, **options)
    return Shown(planet, steps, cost, discounted, file)


def _make_frame(picture: object, text: str) -> Image.Image:
    image = Image.fromarray(np.asarray(picture)).resize(SIZE, Image.Resampling.LANCZOS)
    ImageDraw.Draw(image).text((10, 8), text, fill=(60, 60, 60), font_size=16)
    return image.quantize(32)
