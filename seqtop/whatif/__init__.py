"""Predicts a recorded workload with other settings, by the engine's own scheduler.

`workload` reads what the engine was given and what its model answered. A driver, a process of the
engine's own package, gives that to the real scheduler again and writes a recording of it.
`prediction` compares the two recordings.
"""
