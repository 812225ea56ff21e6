"""The viewer of KV-cache events: an app of its own, which shares widgets and the transport."""
