"""Adapters that make other engines publish. The inspector never imports them.

An adapter of an engine that is not changed has two halves:

- In the engine's process, `wrapping` wraps the methods of its scheduler. An observer of the
  adapter's own records their calls as plain `observations`, and `publisher_process` sends these to
  the other half without ever waiting. `attachment` connects them, at once or when a client wakes a
  `dormant` engine.
- In a process of its own, `publisher_main` converts the observations to messages (`translate`),
  adds the text (`detokenizer`) and serves the viewers.

What is here knows no engine. `vllm/` and `sglang/` know one each.
"""
