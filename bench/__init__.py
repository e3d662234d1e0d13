"""Benchmarks: speed lives here, not in timed tests."""
