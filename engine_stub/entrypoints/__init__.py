"""The ways into the engine: command line, ZeroMQ and HTTP."""
