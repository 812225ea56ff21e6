"""OpenAI's HTTP API: completions, chat completions and embeddings.

`app` handles requests on a thread of its own, and communicates with the engine's thread only
through `bridge`. `schemas` defines the bodies of requests, `responses` those of responses.
"""
