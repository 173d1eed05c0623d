"""The tools of an agent: what a model may do to files and processes, and what it is told of it."""
