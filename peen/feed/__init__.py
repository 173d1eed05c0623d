"""Committed rows go out: rendered once, encoded once, handed to every socket that wants them."""
