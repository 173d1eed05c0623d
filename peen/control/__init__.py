"""The controller process: what it owns, from its lock to its orderly stop."""
