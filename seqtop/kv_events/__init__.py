"""KV-cache events of vLLM and SGLang: messages, subscriber, cache and session."""
