"""Run folders: files, locks, signals, checkpoints, processes and progress. Knows no model."""
