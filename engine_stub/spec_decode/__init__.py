"""Speculative decoding: proposers and rejection sampling."""
