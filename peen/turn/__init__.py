"""The root agent's actor."""
