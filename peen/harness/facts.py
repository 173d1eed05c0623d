"""Reads the runtime facts of a turn from the machine."""

from __future__ import annotations

import os
import platform
from datetime import datetime, tzinfo
from pathlib import Path
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from peen.entropy import Entropy
from peen.harness.prompt import RuntimeFacts

_ZONE_MARK = "/zoneinfo/"


def runtime_facts(entropy: Entropy, *, peen_version: str, zone: str | None = None) -> RuntimeFacts:
    """The facts as of now. `zone` is an IANA name and stands for the machine's own time zone, if given."""
    name = zone or _local_zone_name()
    moment = _local(entropy.now_ms() // 1000, name)
    return RuntimeFacts(
        # To the hour: it stands in front of all messages, and a provider's cache holds only what does not change.
        local_time=moment.replace(minute=0, second=0).isoformat(timespec="seconds"),
        time_zone=name or moment.tzname() or "unknown",
        operating_system=f"{platform.system()} {platform.release()}",
        architecture=platform.machine(),
        cpu_count=len(os.sched_getaffinity(0)),
        runtime_version=f"Peen {peen_version}, Python {platform.python_version()}",
    )


def _local(seconds: int, name: str | None) -> datetime:
    zone: tzinfo | None = None  # the C library's idea of local time
    if name is not None:
        try:
            zone = ZoneInfo(name)
        except (ZoneInfoNotFoundError, ValueError):
            zone = None
    # The offset is always kept: without one the text would not be RFC 3339.
    return datetime.fromtimestamp(seconds, zone) if zone else datetime.fromtimestamp(seconds).astimezone()


def _local_zone_name() -> str | None:
    """The IANA name from TZ or from where /etc/localtime points; None where neither gives one."""
    from_environment = os.environ.get("TZ", "").removeprefix(":")
    if from_environment:
        return from_environment
    target = os.path.realpath(Path("/etc/localtime"))
    return target.partition(_ZONE_MARK)[2] or None
