"""Sockets and threads: the publisher's and the viewer's end of the ZeroMQ protocol."""
