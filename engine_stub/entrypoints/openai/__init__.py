"""The engine's front door for HTTP clients: OpenAI's completions and chat completions.

`app` reads requests and writes answers on a thread of its own; `bridge` is the only way between
it and the engine's thread; `schemas` is what clients send, `answers` what they get.
"""
