"""Methods beyond the paper as plain NumPy loops, in float64. Nothing here comes from softswitch.

Every method is a class with ``step(w, k, round)``, which gives w_{k+1}. A ``Round`` has the draws, the clients' values
on them, and local steps along any vector field.
"""

import numpy as np

from reference import local_solver, softmax


class Round:
    """Values and local updates of a round's participants."""

    def __init__(self, functions, draws, eta, gamma, E, n):
        self.functions, self.draws, self.eta, self.gamma, self.E, self.n = functions, draws, eta, gamma, E, n
        self.clients = draws.clients
        self.places = range(len(draws.clients))

    def f(self, w):
        return np.array([self.functions.f(w, rows) for rows in self.draws.value_rows])

    def g(self, w):
        return np.array([self.functions.g(w, rows) for rows in self.draws.value_rows])

    def u(self, place, w, on_f, on_g, more=lambda v: 0.0):
        """The direction of one participant along on_f ∇f + <on_g, ∇g> + more."""

        def field(v, rows):
            return on_f * self.functions.grad_f(v, rows) + on_g @ self.functions.grad_g(v, rows) + more(v)

        return local_solver(w, field, self.draws.gradient_rows[:, place], self.gamma, self.E)

    def along(self, w, P, Q):
        """Σ_i P_i u_i(f_i) + Σ_ic Q_ic u_i(g_ic), with local steps of each client on its weighted loss."""
        total = P.sum() + Q.sum()
        out = np.zeros_like(w)
        for j in self.places:
            r = (P[j] + Q[j].sum()) / total
            if r > 0:
                out += r * self.u(j, w, P[j] / r, Q[j] / r)
        return out


def client_weights(values, alpha):
    flat = values.ravel()
    weights = np.full(flat.shape, 1 / flat.size) if alpha is None else softmax(alpha * flat)
    return weights.reshape(values.shape)


class SoftSwitch:
    def __init__(self, beta, lam):
        self.beta, self.lam = beta, lam
        self.mixed = 0

    def step(self, w, k, now):
        f, g = now.f(w), now.g(w)
        p, q = client_weights(f, None), client_weights(g, None)
        s = min(1.0, max(0.0, 1 + self.beta * ((q * g).sum() - self.lam)))
        self.mixed += 0 < s < 1
        return w - now.eta * now.along(w, (1 - s) * p, s * q)


class FedAvg:
    def step(self, w, k, now):
        none = np.zeros_like(now.g(w))
        return w - now.eta * now.along(w, client_weights(now.f(w), None), none)


class TERM:
    def __init__(self, t):
        self.t = t

    def step(self, w, k, now):
        return w - now.eta * now.along(w, client_weights(now.f(w), self.t), np.zeros_like(now.g(w)))


class QFedAvg:
    def __init__(self, q):
        self.q = q

    def step(self, w, k, now):
        f, L = now.f(w) + 1e-10, 1 / now.eta
        none = np.zeros(now.g(w).shape[1])
        up = down = 0
        for j in now.places:
            u = now.u(j, w, 1.0, none)
            up = up + f[j] ** self.q * u
            down += self.q * f[j] ** (self.q - 1) * u @ u + L * f[j] ** self.q
        return w - up / down


class NuPI:
    def __init__(self, n, c, mu, ki, kp, nu, eps, alpha=None):
        self.mu, self.xi = np.full((n, c), mu), np.full((n, c), np.nan)
        self.ki, self.kp, self.nu, self.eps, self.alpha = ki, kp, nu, eps, alpha

    def step(self, w, k, now):
        f, g, who = now.f(w), now.g(w), now.clients
        out = w - now.eta * now.along(w, client_weights(f, self.alpha), self.mu[who] * now.n / len(who))
        e = g - self.eps
        # As the source has it: μ += κ_i e + κ_p (ξ_new − ξ_old), from the second error on; ξ is 0 until then.
        xi = np.nan_to_num(self.xi[who])
        new = np.where(np.isnan(self.xi[who]), 0.0, self.nu * xi + (1 - self.nu) * e)
        self.mu[who] = np.maximum(0, self.mu[who] + self.ki * e + self.kp * (new - xi))
        self.xi[who] = new
        return out


class AugmentedLagrangian:
    def __init__(self, n, c, rho, eta_d, eps, mu=0.0, alpha=None):
        self.mu, self.rho, self.eta_d, self.eps, self.alpha = np.full((n, c), mu), rho, eta_d, eps, alpha

    def step(self, w, k, now):
        f, e, who = now.f(w), now.g(w) - self.eps, now.clients
        pressed = np.maximum(0, self.mu[who] + self.rho * e)
        out = w - now.eta * now.along(w, client_weights(f, self.alpha), pressed * now.n / len(who))
        self.mu[who] = np.maximum(0, self.mu[who] + self.eta_d * e)
        return out


class HingePenalty:
    def __init__(self, n, c, rho, share, eps, alpha=None):
        self.estimate, self.rho, self.share, self.eps, self.alpha = np.full((n, c), np.nan), rho, share, eps, alpha
        self.before = None

    def step(self, w, k, now):
        f, g, who = now.f(w), now.g(w), now.clients
        before = now.g(w if self.before is None else self.before)
        old = self.estimate[who]
        estimate = np.where(np.isnan(old), g, g + (1 - self.share) * (np.nan_to_num(old) - before))
        q = client_weights(estimate, self.alpha) * (estimate > self.eps)
        self.estimate[who], self.before = estimate, w
        return w - now.eta * now.along(w, client_weights(f, self.alpha), self.rho * q)


class Estimated:
    """A method whose direction may depend on earlier rounds, with separate memory for each kind of round."""

    def __init__(self, way, alpha, lam=None, penalty=None, eps=None):
        self.way, self.alpha, self.lam, self.penalty, self.eps = way, alpha, lam, penalty, eps
        self.kept = {}

    def step(self, w, k, now):
        f, g = now.f(w), now.g(w)
        p, q = client_weights(f, self.alpha), client_weights(g, self.alpha)
        G, kind = (q * g).sum(), "both"
        if self.penalty is not None:
            P, Q = p, self.penalty * (self.eps < G) * q
        else:
            kind = "f" if self.lam >= G else "g"
            P, Q = (p, 0 * q) if kind == "f" else (0 * p, q)
        made, self.kept[kind] = self.way(self.kept.get(kind), w, lambda v: now.along(v, P, Q))
        return w - now.eta * made


def optimistic(carry):
    def way(kept, w, u):
        now = u(w)
        return (now if kept is None else now + carry * (now - kept)), now

    return way


def simplex(v):
    """The nearest point of the simplex, by bisection on the threshold."""
    low, high = v.min() - 1, v.max()
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if np.maximum(v - middle, 0).sum() > 1 else (low, middle)
    return np.maximum(v - high, 0)


class Agnostic:
    def __init__(self, n, gamma_d):
        self.weights, self.gamma_d = np.full(n, 1 / n), gamma_d

    def step(self, w, k, now):
        f, who = now.f(w), now.clients
        own = self.weights[who]
        p = own / own.sum() if own.sum() > 0 else np.full(len(who), 1 / len(who))
        out = w - now.eta * now.along(w, p, np.zeros_like(now.g(w)))
        climbed = self.weights.copy()
        climbed[who] += self.gamma_d * f * now.n / len(who)
        self.weights = simplex(climbed)
        return out


class Variates:
    """Control variates for rounds with equal treatment of one kind."""

    def __init__(self, n):
        self.c = [None] * n

    def along(self, w, weights, now, on_f, on_g):
        who = now.clients
        known = [j for j in now.places if self.c[who[j]] is not None]
        total = sum(weights[j] for j in known)
        mean = sum(weights[j] * self.c[who[j]] for j in known) / total if total > 0 else 0
        out, new = 0, {}
        for j in now.places:
            shift = mean - self.c[who[j]] if j in known else 0 * w
            u = now.u(j, w, on_f, on_g[j], lambda v, shift=shift: shift)
            out, new[who[j]] = out + weights[j] * u, u - shift
        for i, value in new.items():
            self.c[i] = value
        return out


class SwitchingScaffold:
    def __init__(self, n, alpha, lam):
        self.f, self.g, self.alpha, self.lam = Variates(n), Variates(n), alpha, lam

    def step(self, w, k, now):
        f, g = now.f(w), now.g(w)
        p, q = client_weights(f, self.alpha), client_weights(g, self.alpha)
        if (q * g).sum() <= self.lam:
            return w - now.eta * self.f.along(w, p, now, 1.0, np.zeros_like(g))
        r = q.sum(axis=1)
        return w - now.eta * self.g.along(w, r, now, 0.0, q / r[:, None])


class ScaffPD:
    def __init__(self, n, sigma, theta):
        self.weights, self.last, self.sigma, self.theta = np.full(n, 1 / n), np.full(n, np.nan), sigma, theta
        self.variates = Variates(n)

    def step(self, w, k, now):
        f, who = now.f(w), now.clients
        change = np.where(np.isnan(self.last[who]), 0, f - np.nan_to_num(self.last[who]))
        self.weights[who] *= np.exp(self.sigma * (f + self.theta * change))
        self.weights /= self.weights.max()
        self.last[who] = f
        p = self.weights[who] / self.weights[who].sum()
        return w - now.eta * self.variates.along(w, p, now, 1.0, np.zeros_like(now.g(w)))


class ProxAL:
    def __init__(self, n, c, beta, inner, pull, eps, d):
        self.mu, self.price = np.zeros((n, c)), np.zeros((n, d))
        self.beta, self.inner, self.pull, self.eps = beta, inner, pull, eps

    def step(self, w, k, now):
        who, e = now.clients, now.g(w) - self.eps
        pressed = np.maximum(0, self.mu[who] + self.beta * e)
        sent = []
        for j in now.places:
            price = self.price[who[j]]
            u = now.u(j, w, 1.0, pressed[j], lambda v, price=price: price + self.pull * (v - w))
            own = w - now.gamma * now.E * u  # the client's model
            self.price[who[j]] = price + self.pull * (own - w)
            sent.append(own + self.price[who[j]] / self.pull)
        if (k + 1) % self.inner == 0:
            self.mu[who] = pressed
        return np.mean(sent, axis=0)


def run(functions, method, w0, all_draws, eta, gamma, E, n):
    """Every iterate."""
    iterates = [w0]
    for k, draws in enumerate(all_draws):
        iterates.append(method.step(iterates[-1], k, Round(functions, draws, eta, gamma, E, n)))
    return np.array(iterates)
