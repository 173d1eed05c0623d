"""Structured logs: lines for the operator on a stream, and daily audit files with digests instead of content."""

from __future__ import annotations

from peen.log.redact import digest as digest
from peen.log.setup import Logger as Logger
from peen.log.setup import Logging as Logging
from peen.log.setup import configure_logging as configure_logging
from peen.log.setup import get_logger as get_logger
