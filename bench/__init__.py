"""Measurements. Each module prints a table, or with `--json` one object; nothing here asserts."""
