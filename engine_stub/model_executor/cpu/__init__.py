"""Fast paths for decode steps on a CPU."""
