"""`host:port`, as listeners take it."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import Final

_ADDRESS: Final = re.compile(
    r"(?:\[(?P<v6>[0-9A-Fa-f:.]+(?:%[0-9A-Za-z._-]+)?)\]|(?P<host>[^\[\]:/@\s]*)):(?P<port>[0-9]+)"
)
_HOST_NAME: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)*\.?")


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """Where a listener binds. `host` is "" for every interface and has no brackets; port 0 lets the system choose."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Only this machine can connect. Another name than `localhost` may resolve to anything: it does not count."""
        if self.host.lower() == "localhost":
            return True
        return self.is_ip and ipaddress.ip_address(self.host).is_loopback

    @property
    def is_ip(self) -> bool:
        """The host is an IP address, not a name and not empty."""
        try:
            ipaddress.ip_address(self.host)
        except ValueError:
            return False
        return True


def parse_listen_address(text: str) -> ListenAddress:
    """`127.0.0.1:8080`, `localhost:0`, `[::1]:8080`, or `:8080` for every interface.

    Raises: ValueError with what is wrong.
    """
    found = _ADDRESS.fullmatch(text)
    if found is None:
        hint = "; an IPv6 address needs brackets" if text.count(":") > 1 and not text.startswith("[") else ""
        raise ValueError(f"{text!r} is not host:port{hint}")
    v6, host, port = found["v6"], found["host"] or "", found["port"]
    if len(port) > 5 or int(port) > 65535:
        raise ValueError(f"port {port} is above 65535")
    if v6 is not None:
        try:
            ipaddress.IPv6Address(v6)
        except ValueError:
            raise ValueError(f"{v6!r} is not an IPv6 address") from None
        return ListenAddress(v6, int(port))
    looks_numeric = host != "" and all(part.isdigit() for part in host.split("."))
    address = ListenAddress(host, int(port))
    # 127.1 and 999.0.0.1 would pass as host names and mean something else to the resolver.
    if looks_numeric and not address.is_ip:
        raise ValueError(f"{host!r} is not an IPv4 address")
    if host and not looks_numeric and (len(host) > 253 or not _HOST_NAME.fullmatch(host)):
        raise ValueError(f"{host!r} is not a host name")
    return address


def parse_allowed_host(text: str) -> str:
    """One entry of PEEN_ALLOWED_HOSTS in lower case: `host` (any port) or `host:port`, IPv6 in brackets.

    Raises: ValueError with what is wrong.
    """
    has_port = re.search(r":[0-9]+$", text) is not None and (not text.startswith("[") or "]:" in text)
    try:
        address = parse_listen_address(text if has_port else f"{text}:1")
    except ValueError:
        address = ListenAddress("", 0)
    if address.host == "" or (has_port and address.port == 0):
        raise ValueError(f"{text!r} is not a host or host:port (no scheme, path or wildcard)")
    return text.lower()
