"""Charges of the time of requests: to themselves, to other requests, and to what is none."""
