"""seqtop: see what an LLM inference engine is doing to every sequence, live."""

__version__ = "0.1.0"
