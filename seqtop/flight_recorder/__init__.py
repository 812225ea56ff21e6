"""The flight recorder: the last minutes of an engine in memory, written to a file when it fails.

An engine starts it with `process.started` as a process of its own, which subscribes as any viewer
does; `seqtop record --flight-recorder` attaches one to an engine that runs already.
"""
