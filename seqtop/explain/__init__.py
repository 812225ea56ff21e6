"""Explanations of latencies: the parts of a request's time, and what slow requests share."""
