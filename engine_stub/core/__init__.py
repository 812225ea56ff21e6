"""Scheduling and block management."""
