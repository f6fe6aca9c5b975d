"""Experiments: one file each; they write a run folder, and their pictures are drawn from it."""
