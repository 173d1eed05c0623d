"""Where workers run: the fork server, the agent spaces, and the supervisor of their generations."""
