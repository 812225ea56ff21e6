"""Measurements of seqtop, compared with alternatives or limits measured in the same run.

`python -m benchmarks` runs one module per row and prints one table. `python -m benchmarks.painting`
runs one module.
"""
