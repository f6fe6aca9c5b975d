"""The theorems for given numbers."""
