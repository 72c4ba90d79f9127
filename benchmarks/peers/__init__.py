"""softswitch and its peers on identical work: ``python -m benchmarks.peers``.

One file a peer, each run under the Python of an environment of its own, which is made on first use in ``build/peers``.
"""
