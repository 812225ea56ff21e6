"""A viewer's session with one engine: the subscriber's thread, the state and a lock around it.

The thread receives, decodes and applies; whoever shows something takes the lock for as long as
it reads, and asks `drain` what has changed since it last did. Nothing here draws.
"""
