"""Peen, a durable coding-agent service: everything is stored before it is shown."""

from __future__ import annotations

__version__ = "0.1.0"
