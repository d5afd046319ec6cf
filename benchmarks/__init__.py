"""Benchmarks: each is a module to be run with ``python -m benchmarks.<name>``."""
