"""Stored history to model input."""
