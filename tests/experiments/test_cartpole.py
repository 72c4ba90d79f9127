"""The constrained CartPole: Gymnasium's dynamics on every planet, cost and environment."""

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


def make_gymnasium_cart(gravity, pole_mass, half_length):
    """Return Gymnasium's CartPole with these physics."""
    cart = CartPoleEnv()
    cart.gravity, cart.masspole, cart.length = gravity, pole_mass, half_length
    cart.total_mass = cart.masspole + cart.masscart
    cart.polemass_length = cart.masspole * cart.length
    return cart


def episode(cart, seed):
    """Return states, actions and ends of an episode with a balancing controller and random pushes."""
    generator = np.random.default_rng(seed)
    cart.reset(seed=seed)
    states, actions, ends = [cart.state], [], []
    for _ in range(LONG):
        x, velocity, angle, spin = cart.state
        leans = angle + 0.3 * spin + 0.02 * x + 0.05 * velocity > 0
        actions.append(int(leans if generator.random() > (0.2, 0.8)[seed % 2] else generator.integers(2)))
        _, _, has_ended, _, _ = cart.step(actions[-1])
        states.append(cart.state)
        ends.append(has_ended)
        if has_ended:
            break
    return np.array(states), np.array(actions), np.array(ends)


PHYSICS = {"earth": (9.8, 0.1, 0.5), "mars": (3.7, 0.2, 0.8), "jupiter": (20.0, 0.5, 0.2)}


@pytest.mark.parametrize("planet", PHYSICS)
def test_transitions_match_gymnasium(planet):
    assert tuple(PLANETS[planet]) == PHYSICS[planet]
    lengths = []
    for seed in range(10):
        states, actions, ends = episode(make_gymnasium_cart(*PHYSICS[planet]), seed)
        next_states, has_ended = jax.jit(step)(jnp.float32(states[:-1]), jnp.asarray(actions), PLANETS[planet])
        np.testing.assert_allclose(next_states, states[1:], atol=1e-5, rtol=0)
        np.testing.assert_array_equal(has_ended, ends)
        lengths.append(len(ends))
    assert max(lengths) > 100  # some episodes are long
    assert min(lengths) < LONG  # and some end early


@pytest.mark.parametrize("planet", PHYSICS)
def test_fifty_steps_match_gymnasium(x64, planet):
    """With fixed actions rounding errors grow by a factor of e in five steps, so short stretches are compared."""
    states, actions, ends = episode(make_gymnasium_cart(*PHYSICS[planet]), 0)

    def advance(state, action):
        next_state, has_ended = step(state, action, Physics(*PHYSICS[planet]))
        return next_state, (next_state, has_ended)

    for first in range(0, len(actions) - 50, 50):
        stretch = slice(first, first + 50)
        _, (next_states, has_ended) = jax.lax.scan(advance, jnp.asarray(states[first]), jnp.asarray(actions[stretch]))
        np.testing.assert_allclose(next_states, states[1:][stretch], atol=1e-5, rtol=0)
        np.testing.assert_array_equal(has_ended, ends[stretch])


def cost_of(x=0.6, angle=0.0):
    return float(cost(jnp.array([x, 7.0, angle, -7.0])))


def test_cost():
    assert [cost_of(x) for x in (-2.3, -1.2, 0.0, 0.05, 1.2, 2.3)] == [1.0] * 6
    assert [cost_of(x) for x in (-2.0, -1.0, -0.5, 0.6, 1.05, 1.4, 2.1, 2.5)] == [0.0] * 8
    assert [cost_of(angle=np.radians(degrees)) for degrees in (-11, -6.1, -5.9, 0, 5.9, 6.1, 11)] == [
        1,
        1,
        0,
        0,
        0,
        1,
        1,
    ]
    assert cost_of(0.0, 0.2) == 1.0  # both violations together still cost 1
    batch = cost(jnp.array([[[0.0, 0, 0, 0], [0.6, 0, 0, 0]]]))
    np.testing.assert_array_equal(batch, [[1.0, 0.0]])


@given(st.sampled_from([edge for strip in STRIPS for edge in strip]), st.booleans())
def test_strips_include_their_ends(edge, outward):
    low = edge in [strip[0] for strip in STRIPS]
    position = np.float32(edge)
    outside = np.nextafter(position, np.float32(-9 if low == outward else 9))
    assert cost_of(position) == 1.0
    assert cost_of(outside) == (0.0 if outward else 1.0)


@given(st.sampled_from([-1.0, 1.0]))
def test_angle_above_six_degrees_is_costly(side):
    angle = np.float32(COSTLY_ANGLE)
    assert cost_of(angle=side * angle) == 0.0
    assert cost_of(angle=side * np.nextafter(angle, np.float32(1))) == 1.0


@given(st.floats(-2.5, 2.5, width=32), st.floats(-0.25, 0.25, width=32))
def test_cost_at_random_states(x, angle):
    is_inside = min(abs(x - middle) for middle in (-2.3, -1.2, 0.0, 1.2, 2.3)) <= 0.1
    is_near_edge = (
        min(abs(x - edge) for strip in STRIPS for edge in strip) < 1e-6 or abs(abs(angle) - COSTLY_ANGLE) < 1e-7
    )
    assert is_near_edge or cost_of(x, angle) == float(is_inside or abs(angle) > np.radians(6))


@pytest.mark.filterwarnings("ignore:.*A Box observation space m.*imum value is -?infinity")  # as CartPole's own
@pytest.mark.parametrize("planet", PHYSICS)
def test_environment_passes_gymnasium_checker(planet):
    check_env(gymnasium.make("softswitch/ConstrainedCartPole-v0", planet=planet).unwrapped, skip_render_check=True)


def test_environment_episode():
    environment = gymnasium.make("softswitch/ConstrainedCartPole-v0", planet="mars")
    state, info = environment.reset(seed=3)
    assert np.abs(state).max() <= 0.05
    assert info == {}
    reference = make_gymnasium_cart(*PHYSICS["mars"])
    reference.reset(seed=3)
    for action in (0, 0, 1, 1, 0, 1, 1):
        state, reward, has_ended, _, info = environment.step(action)
        expected, expected_reward, expected_end, _, _ = reference.step(action)
        np.testing.assert_array_equal(state, expected)
        assert (reward, has_ended) == (expected_reward, expected_end)
        assert info["cost"] == float(cost(jnp.asarray(reference.state, jnp.float32)))


def test_environment_ends_after_200_steps():
    environment = gymnasium.make("softswitch/ConstrainedCartPole-v0")
    environment.reset(seed=0)
    for k in range(200):
        x, velocity, angle, spin = environment.unwrapped.state
        action = int(angle + 0.3 * spin + 0.02 * x + 0.05 * velocity > 0)
        *_, has_ended, truncated, _ = environment.step(action)
        assert not has_ended
        assert truncated == (k == 199)


def test_strips_are_drawn(monkeypatch):
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    environment = gymnasium.make("softswitch/ConstrainedCartPole-v0", render_mode="rgb_array")
    environment.reset(seed=0)
    top = environment.render()[0]  # the sky, above the pole
    x = (np.arange(600) + 0.5) / 600 * 4.8 - 2.4
    prohibited = np.array([any(low <= position <= high for low, high in STRIPS) for position in x])
    np.testing.assert_array_equal((top == 255).all(axis=1), ~prohibited)
    environment.close()


def test_unknown_planet_is_rejected():
    with pytest.raises(ValueError, match=r"planet must be one of .*earth.*, but is 'venus'"):
        gymnasium.make("softswitch/ConstrainedCartPole-v0", planet="venus")
