"""Benchmarks: each a ratio against a peer, measured in one run. `make bench` runs them."""
