"""Device-specific code: CUDA transfers, timers, graphs and memory."""
