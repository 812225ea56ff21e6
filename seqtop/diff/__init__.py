"""Comparison of two recorded runs: the first decision in which they differ, and what followed."""
