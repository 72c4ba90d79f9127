"""The constrained CartPole: Gymnasium's dynamics on every planet, its cost, and the environment made of it."""

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from gymnasium.utils.env_checker import check_env
from hypothesis import given
from hypothesis import strategies as st

from softswitch_experiments.tasks.safe_rl.physics import COSTLY_ANGLE, PLANETS, STRIPS, Physics, cost, step

LONG = 400


def gymnasium_on(gravity, pole_mass, half_length):
    """Gymnasium's own CartPole with other physics, set by hand."""
    cart = CartPoleEnv()
    cart.gravity, cart.masspole, cart.length = gravity, pole_mass, half_length
    cart.total_mass = cart.masspole + cart.masscart
    cart.polemass_length = cart.masspole * cart.length
    return cart


def episode(cart, seed):
    """States, actions and ends of an episode: a balancing controller with one push in five at random, or most."""
    chance = np.random.default_rng(seed)
    cart.reset(seed=seed)
    states, actions, ends = [cart.state], [], []
    for _ in range(LONG):
        x, velocity, angle, spin = cart.state
        leans = angle + 0.3 * spin + 0.02 * x + 0.05 * velocity > 0
        actions.append(int(leans if chance.random() > (0.2, 0.8)[seed % 2] else chance.integers(2)))
        _, _, ended, _, _ = cart.step(actions[-1])
        states.append(cart.state)
        ends.append(ended)
        if ended:
            break
    return np.array(states), np.array(actions), np.array(ends)


PHYSICS = {"earth": (9.8, 0.1, 0.5), "mars": (3.7, 0.2, 0.8), "jupiter": (20.0, 0.5, 0.2)}


@pytest.mark.parametrize("planet", PHYSICS)
def test_every_transition_is_gymnasiums(planet):
    assert tuple(PLANETS[planet]) == PHYSICS[planet]
    lengths = []
    for seed in range(10):
        states, actions, ends = episode(gymnasium_on(*PHYSICS[planet]), seed)
        ours, ended = jax.jit(step)(jnp.float32(states[:-1]), jnp.asarray(actions), PLANETS[planet])
        np.testing.assert_allclose(ours, states[1:], atol=1e-5, rtol=0)
        np.testing.assert_array_equal(ended, ends)
        lengths.append(len(ends))
    assert max(lengths) > 100  # long ones are among them
    assert min(lengths) < LONG  # and some that end


@pytest.mark.parametrize("planet", PHYSICS)
def test_fifty_steps_on_its_own_are_gymnasiums(x64, planet):
    """With given actions a pole is unstable, and rounding grows by a factor of e in five steps: hence stretches."""
    states, actions, ends = episode(gymnasium_on(*PHYSICS[planet]), 0)

    def go(state, action):
        after, ended = step(state, action, Physics(*PHYSICS[planet]))
        return after, (after, ended)

    for first in range(0, len(actions) - 50, 50):
        stretch = slice(first, first + 50)
        _, (ours, ended) = jax.lax.scan(go, jnp.asarray(states[first]), jnp.asarray(actions[stretch]))
        np.testing.assert_allclose(ours, states[1:][stretch], atol=1e-5, rtol=0)
        np.testing.assert_array_equal(ended, ends[stretch])


def of(x=0.6, angle=0.0):
    return float(cost(jnp.array([x, 7.0, angle, -7.0])))


def test_cost_by_hand():
    assert [of(x) for x in (-2.3, -1.2, 0.0, 0.05, 1.2, 2.3)] == [1.0] * 6
    assert [of(x) for x in (-2.0, -1.0, -0.5, 0.6, 1.05, 1.4, 2.1, 2.5)] == [0.0] * 8
    assert [of(angle=np.radians(degrees)) for degrees in (-11, -6.1, -5.9, 0, 5.9, 6.1, 11)] == [1, 1, 0, 0, 0, 1, 1]
    assert of(0.0, 0.2) == 1.0  # both at once still costs 1
    batch = cost(jnp.array([[[0.0, 0, 0, 0], [0.6, 0, 0, 0]]]))
    np.testing.assert_array_equal(batch, [[1.0, 0.0]])


@given(st.sampled_from([edge for strip in STRIPS for edge in strip]), st.booleans())
def test_the_ends_of_strips_belong_to_them(edge, outward):
    low = edge in [strip[0] for strip in STRIPS]
    at = np.float32(edge)
    beside = np.nextafter(at, np.float32(-9 if low == outward else 9))
    assert of(at) == 1.0
    assert of(beside) == (0.0 if outward else 1.0)


@given(st.sampled_from([-1.0, 1.0]))
def test_six_degrees_are_free_and_more_is_not(side):
    at = np.float32(COSTLY_ANGLE)
    assert of(angle=side * at) == 0.0
    assert of(angle=side * np.nextafter(at, np.float32(1))) == 1.0


@given(st.floats(-2.5, 2.5, width=32), st.floats(-0.25, 0.25, width=32))
def test_cost_anywhere(x, angle):
    inside = min(abs(x - middle) for middle in (-2.3, -1.2, 0.0, 1.2, 2.3)) <= 0.1
    near = min(abs(x - edge) for strip in STRIPS for edge in strip) < 1e-6 or abs(abs(angle) - COSTLY_ANGLE) < 1e-7
    assert near or of(x, angle) == float(inside or abs(angle) > np.radians(6))


@pytest.mark.filterwarnings("ignore:.*A Box observation space m.*imum value is -?infinity")  # as CartPole's own
@pytest.mark.parametrize("planet", PHYSICS)
def test_the_environment_passes_gymnasiums_checker(planet):
    check_env(gymnasium.make("softswitch/ConstrainedCartPole-v0", planet=planet).unwrapped, skip_render_check=True)


def test_an_episode_of_the_environment():
    environment = gymnasium.make("softswitch/ConstrainedCartPole-v0", planet="mars")
    state, info = environment.reset(seed=3)
    assert np.abs(state).max() <= 0.05
    assert info == {}
    reference = gymnasium_on(*PHYSICS["mars"])
    reference.reset(seed=3)
    for action in (0, 0, 1, 1, 0, 1, 1):
        state, reward, ended, _, info = environment.step(action)
        expected, expected_reward, expected_end, _, _ = reference.step(action)
        np.testing.assert_array_equal(state, expected)
        assert (reward, ended) == (expected_reward, expected_end)
        assert info["cost"] == float(cost(jnp.asarray(reference.state, jnp.float32)))


def test_the_environment_ends_after_200_steps():
    environment = gymnasium.make("softswitch/ConstrainedCartPole-v0")
    environment.reset(seed=0)
    for k in range(200):
        x, velocity, angle, spin = environment.unwrapped.state
        action = int(angle + 0.3 * spin + 0.02 * x + 0.05 * velocity > 0)
        *_, ended, truncated, _ = environment.step(action)
        assert not ended
        assert truncated == (k == 199)


def test_strips_are_drawn(monkeypatch):
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    environment = gymnasium.make("softswitch/ConstrainedCartPole-v0", render_mode="rgb_array")
    environment.reset(seed=0)
    top = environment.render()[0]  # the sky, above the pole
    x = (np.arange(600) + 0.5) / 600 * 4.8 - 2.4
    prohibited = np.array([any(low <= at <= high for low, high in STRIPS) for at in x])
    np.testing.assert_array_equal((top == 255).all(axis=1), ~prohibited)
    environment.close()


def test_a_planet_that_is_not_there():
    with pytest.raises(ValueError, match=r"planet must be one of .*earth.*, but is 'venus'"):
        gymnasium.make("softswitch/ConstrainedCartPole-v0", planet="venus")
