"""A first look."""
