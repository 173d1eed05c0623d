"""One conversation with one workspace."""
