"""One script a peer: rounds of federated averaging. Each runs under the Python of that peer's own environment."""
