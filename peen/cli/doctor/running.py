"""The controller that runs, or the place where one would listen."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from peen.cli.client import CallRefused, Client, ConnectionLost
from peen.cli.doctor.finding import Finding, fail, ok, warn
from peen.cli.reach import endpoint
from peen.control.lock import LockInfo
from peen.entropy import Entropy
from peen.settings import ListenAddress, Settings

ANSWER_S: Final = 5.0
_OTHER_PORT: Final = "set PEEN_HTTP_LISTEN_ADDRESS to another address, such as 127.0.0.1:8081"


def look_at_controller(settings: Settings, holder: LockInfo | None, entropy: Entropy) -> Iterator[Finding]:
    """Whether one runs and answers, and whether its port is its own or free."""
    if holder is None:
        yield ok("controller", f"none uses {settings.state_dir}")
        yield look_at_port(settings.http_listen_address)
        return
    who = f"process {holder.pid} uses {settings.state_dir}"
    try:
        Client(endpoint(settings, holder), entropy, call_s=ANSWER_S).get("/ready")
    except (ConnectionLost, CallRefused) as problem:
        logs = settings.log_directory
        yield fail("controller", f"{who} and does not answer: {problem}", mend=f"peen stop; what it did is in {logs}")
        return
    yield ok("controller", f"{who} and answers")
    yield _port_of(holder, settings.http_listen_address)


def look_at_port(wanted: ListenAddress) -> Finding:
    """Whether a controller could listen at `wanted`. Binds for an instant, and does not listen."""
    about = "port"
    if wanted.port == 0:
        return ok(about, f"{wanted}: the system chooses a free one")
    try:
        places = socket.getaddrinfo(wanted.host or None, wanted.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        return fail(about, f"{wanted}: {error.strerror}", mend=_OTHER_PORT)
    for family, kind, protocol, _, address in places:
        try:
            _bind(family, kind, protocol, address)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return fail(about, f"{wanted} is in use by another program", mend=f"end it, or {_OTHER_PORT}")
            if error.errno in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL) and len(places) > 1:
                continue  # an interface without IPv6
            return fail(about, f"{wanted}: {error.strerror}", mend=_OTHER_PORT)
    return ok(about, f"{wanted} is free")


def _port_of(holder: LockInfo, wanted: ListenAddress) -> Finding:
    if holder.address is None:
        return ok("port", "the running controller serves its Unix socket only")
    port = urlsplit(holder.address).port
    if wanted.port not in (0, port):
        return warn(
            "port", f"the running controller listens at {holder.address}, not at {wanted}",
            mend="start it again, if these settings are the newer ones",
        )  # fmt: skip
    return ok("port", f"{holder.address}, by the running controller")


def _bind(family: int, kind: int, protocol: int, address: object) -> None:
    with socket.socket(family, kind, protocol) as probe:
        # As the listener does: connections that just ended are no obstacle, a program that listens is.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        probe.bind(address)  # type: ignore[arg-type]  # whatever getaddrinfo gave for this family


def can_connect(path: Path, within_s: float) -> bool:
    """Whether this user reaches a server at a Unix socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(within_s)
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True
