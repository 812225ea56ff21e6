"""Gates of a run: conditions that must not hold, objectives, and a baseline."""
