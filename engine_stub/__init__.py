"""The bundled engine: a small paged-attention engine that runs a real model for seqtop to watch."""
