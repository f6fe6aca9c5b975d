"""Section 5 of the paper: read `settings`, `run`, `data`, `claims`, `findings`, `report`."""
