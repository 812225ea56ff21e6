"""Live engines: those on this machine, the connection to one, and the session with it."""
