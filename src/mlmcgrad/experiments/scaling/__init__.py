"""Proposition 1 measured."""
