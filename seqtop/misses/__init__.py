"""Misses of the prefix cache: their causes over time, and the misses of larger pools."""
