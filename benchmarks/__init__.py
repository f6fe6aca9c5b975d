"""Benchmarks: each file has `run()`, which returns ratios against an alternative."""
