"""Theorems 1 to 3 measured."""
