"""llama.cpp's server, whose slots are polled and published as an engine's (`docs/llama-cpp.md`)."""
