"""What seqtop costs, each figure beside a peer's or a limit that was measured in the same run.

`python -m benchmarks` runs a module a row and prints one table; each runs alone, too
(`python -m benchmarks.painting`). The scripts beside them (`paint.py`, `fuzz.py`, `soak.py` …) ask
more of one thing, or look for faults rather than for time: each says in its first lines what it
does.
"""
