"""Who may connect: rules over the head of a request, without any I/O.

Host      One that a browser cannot be tricked into: a loopback name (`localhost`, 127.0.0.0/8, `::1`) or the address
          that Peen listens on, each with any port or none, since a forwarded port is a usual thing; or an entry of
          PEEN_ALLOWED_HOSTS, where an entry with a port allows that port only. A wildcard address (0.0.0.0, ::) is
          no name of a server and never allowed.
Origin    Where present, the same host and port as Host; a port left out is the usual one of the origin's scheme.
Token     Where one is configured: `Authorization: Bearer`, or on a socket the subprotocol `peen.bearer.<base64url>`.
Content   A call that changes something says `Content-Type: application/json`, which no foreign page can send unasked.

A trusted connection (the controller's own Unix socket, whose peer has our uid, or the in-memory one) needs neither
Host nor token. A page has no business there, so any Origin is refused.
"""

from __future__ import annotations

import base64
import hmac
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address
from typing import Final

from peen.errors import BadRequest, ForbiddenHost, ForbiddenOrigin, InvalidSessionId, Unauthorized, ValidationFailed
from peen.hub.request import UnsoundFraming, UnsupportedMediaType, UpgradeRequired, parse_query
from peen.ids import parse_uuid4

SOCKET_PATH: Final = "/ws/v1"
PROTOCOL: Final = "peen.v1"
BEARER_PROTOCOL: Final = "peen.bearer."

_DEFAULT_PORTS: Final = {"http": 80, "https": 443}
_CHANGING: Final = frozenset({"POST", "PUT", "PATCH", "DELETE"})
_TOKEN_NAMES: Final = frozenset({"token", "access_token", "accesstoken", "api_token", "apitoken", "bearer", "auth"})
_TOKEN_IN_URL: Final = (
    "a token in the URL ends up in logs and histories and is never read there; send it as 'Authorization: Bearer', "
    "or on a socket as the subprotocols 'peen.v1' and 'peen.bearer.<base64url token>'. Change this token now"
)


@dataclass(frozen=True, slots=True)
class HostPort:
    """A host in lower case, IP addresses in their usual spelling, and the port if one was written."""

    host: str
    port: int | None

    @property
    def is_loopback(self) -> bool:
        if self.host == "localhost":
            return True
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return False


@dataclass(frozen=True, slots=True)
class Rules:
    """What the operator configured. `token` None: no authentication; `allowed` are entries `host` or `host:port`."""

    listen: HostPort
    allowed: frozenset[HostPort] = frozenset()
    token: str | None = None

    @staticmethod
    def of(listen_host: str, allowed_hosts: Iterable[str] = (), token: str | None = None) -> Rules:
        """Rules from settings. Raises ValueError that names an entry of PEEN_ALLOWED_HOSTS that is no host."""
        allowed = set()
        for entry in allowed_hosts:
            parsed = parse_host(entry)
            if parsed is None:
                raise ValueError(f"{entry!r} is not a host name or address with an optional port")
            allowed.add(parsed)
        listen = HostPort(_normal_host(listen_host.strip("[]")) or "", None)
        return Rules(listen, frozenset(allowed), token or None)


@dataclass(frozen=True, slots=True)
class Head:
    """Request line and headers. Names are in lower case; a name may occur more than once. `target` as it was sent.

    Text is the bytes that were sent, read as Latin-1.
    """

    method: str
    target: str
    headers: Sequence[tuple[str, str]]
    version: str = "1.1"

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]

    @property
    def query(self) -> str:
        return self.target.partition("?")[2]

    def all(self, name: str) -> list[str]:
        return [value for key, value in self.headers if key == name]

    def tokens(self, name: str) -> list[str]:
        """The comma-separated members of a header, over all its lines, as written."""
        return [piece.strip() for value in self.all(name) for piece in value.split(",") if piece.strip()]


@dataclass(frozen=True, slots=True)
class Admitted:
    """A socket may open: which session it wants (None: all) and which subprotocol is answered."""

    session_filter: str | None
    subprotocol: str | None


def wants_socket(head: Head) -> bool:
    """Whether this is an upgrade to the socket's path, whatever else may be wrong with it."""
    upgrades = "websocket" in (token.lower() for token in head.tokens("upgrade"))
    return head.method == "GET" and head.path.rstrip("/") == SOCKET_PATH and upgrades


def admit_socket(rules: Rules, head: Head, *, trusted: bool) -> Admitted:
    """Decide on an upgrade at `/ws/v1`. Raises the Refused that is its HTTP answer."""
    check_framing(head, body_allowed=False)
    check_host_and_origin(rules, head, trusted=trusted)
    query = parse_query(head.query)
    _check_no_token_in_url(rules, query)
    offered = head.tokens("sec-websocket-protocol")
    if not trusted:
        _check_token(rules, head, [p.removeprefix(BEARER_PROTOCOL) for p in offered if p.startswith(BEARER_PROTOCOL)])
    _check_handshake(head)
    return Admitted(_session_filter(query), PROTOCOL if PROTOCOL in offered else None)


def admit_request(rules: Rules, head: Head, *, trusted: bool, public: bool) -> None:
    """Decide on a REST call, all but its media type; `public` ones need no token. Raises: Refused, the answer."""
    check_framing(head, body_allowed=True)
    check_host_and_origin(rules, head, trusted=trusted)
    _check_no_token_in_url(rules, parse_query(head.query))
    if not (trusted or public):
        _check_token(rules, head, [])


def check_media_type(head: Head) -> None:
    """A call that changes something says that it sends JSON, which no foreign page can do unasked.

    Raises: UnsupportedMediaType. Asked once it is clear that the operation exists.
    """
    if head.method in _CHANGING:
        media = [value.partition(";")[0].strip().lower() for value in head.all("content-type")]
        if media != ["application/json"]:
            raise UnsupportedMediaType(f"{head.method} needs the header 'Content-Type: application/json', body or not")


def check_framing(head: Head, *, body_allowed: bool) -> None:
    """Refuse heads that two programs could read as different requests. Raises UnsoundFraming."""
    if not head.target.startswith("/"):
        raise UnsoundFraming("the request target must be a path, such as /api/v1/sessions")
    lengths, encodings = head.all("content-length"), head.all("transfer-encoding")
    if lengths and encodings:
        raise UnsoundFraming("a request has a Content-Length or a Transfer-Encoding, not both")
    if not body_allowed and (encodings or lengths not in ([], ["0"])):
        raise UnsoundFraming("an upgrade to a socket has no body")


def check_host_and_origin(rules: Rules, head: Head, *, trusted: bool) -> None:
    """Raises ForbiddenHost or ForbiddenOrigin, whose texts say what to do."""
    origins = head.all("origin")
    if trusted:
        if origins:
            raise ForbiddenOrigin("this connection is for programs of the same user, not for pages")
        return
    hosts = head.all("host")
    host = parse_host(hosts[0]) if len(hosts) == 1 else None
    if host is None or not _host_allowed(rules, host):
        raise ForbiddenHost("this Host is not served; add the name to PEEN_ALLOWED_HOSTS if it is yours")
    if origins and (len(origins) > 1 or not _same_origin(origins[0], host)):
        raise ForbiddenOrigin("pages of another origin may not use this server")


def parse_host(text: str) -> HostPort | None:
    """`host`, `host:port`, `[v6]` or `[v6]:port`, else None."""
    if text.startswith("["):
        name, closed, rest = text[1:].partition("]")
        try:
            host = str(IPv6Address(name))
        except ValueError:
            return None
        if not closed or (rest and not rest.startswith(":")):
            return None
        port_text = rest[1:] if rest else None
    else:
        name, colon, after = text.partition(":")
        normal = _normal_host(name)
        if normal is None:
            return None
        host, port_text = normal, after if colon else None
    if port_text is None:
        return HostPort(host, None)
    if not (port_text.isascii() and port_text.isdecimal() and len(port_text) <= 5 and int(port_text) <= 65535):
        return None
    return HostPort(host, int(port_text))


def _normal_host(name: str) -> str | None:
    lowered = name.lower()
    try:
        return str(ip_address(lowered))
    except ValueError:
        usual = lowered.isascii() and all(c.isalnum() or c in "-._" for c in lowered)
        return lowered if lowered and usual else None


def _host_allowed(rules: Rules, host: HostPort) -> bool:
    if host.is_loopback or (host.host == rules.listen.host and not _is_wildcard(host.host)):
        return True
    return host in rules.allowed or HostPort(host.host, None) in rules.allowed


def _is_wildcard(host: str) -> bool:
    try:
        return ip_address(host).is_unspecified
    except ValueError:
        return False


def _same_origin(origin: str, host: HostPort) -> bool:
    scheme, separator, authority = origin.partition("://")
    default = _DEFAULT_PORTS.get(scheme.lower())
    given = parse_host(authority) if separator else None
    if default is None or given is None or given.host != host.host:
        return False
    return (default if given.port is None else given.port) == (default if host.port is None else host.port)


def _check_token(rules: Rules, head: Head, from_protocols: Sequence[str]) -> None:
    """Every credential that was sent must be right, so that a stale one is noticed rather than ignored."""
    if rules.token is None:
        return
    wanted = rules.token.encode()
    results = [hmac.compare_digest(encode_token(rules.token), given.encode()) for given in from_protocols]
    for value in head.all("authorization"):
        scheme, _, credentials = value.partition(" ")
        given_bytes = credentials.strip().encode("latin-1", "replace")  # the bytes that were sent
        results.append(scheme.lower() == "bearer" and hmac.compare_digest(wanted, given_bytes))
    if not results or not all(results):
        raise Unauthorized("invalid bearer token")


def encode_token(token: str) -> bytes:
    """The token as it stands behind `peen.bearer.`: URL-safe Base64 without padding."""
    return base64.urlsafe_b64encode(token.encode()).rstrip(b"=")


def _check_no_token_in_url(rules: Rules, query: Mapping[str, list[str]]) -> None:
    named = any(name.lower().replace("-", "_") in _TOKEN_NAMES for name in query)
    values = (value for several in query.values() for value in several)
    if named or (rules.token is not None and any(rules.token in value for value in values)):
        raise BadRequest(_TOKEN_IN_URL)


def _check_handshake(head: Head) -> None:
    """What RFC 6455 section 4.2.1 asks of an upgrade. Raises BadRequest or UpgradeRequired."""
    if head.version != "1.1":
        raise BadRequest("an upgrade to a socket needs HTTP/1.1")
    upgrades = [token.lower() for token in head.tokens("upgrade")]
    if upgrades != ["websocket"] or "upgrade" not in (token.lower() for token in head.tokens("connection")):
        raise BadRequest("an upgrade needs the headers 'Connection: Upgrade' and 'Upgrade: websocket'")
    if head.all("sec-websocket-version") != ["13"]:
        raise UpgradeRequired("the version of the WebSocket protocol must be 13")
    keys = head.all("sec-websocket-key")
    try:
        sound = len(keys) == 1 and len(base64.b64decode(keys[0], validate=True)) == 16
    except ValueError:
        sound = False
    if not sound:
        raise BadRequest("Sec-WebSocket-Key must be 16 bytes in Base64")
    # The library decodes these as ASCII.
    if not all(value.isascii() for name, value in head.headers if name.startswith("sec-websocket-")):
        raise BadRequest("the Sec-WebSocket headers must be ASCII")


def _session_filter(query: Mapping[str, list[str]]) -> str | None:
    for name in query:
        if name != "sessionId":
            raise ValidationFailed(f"{name[:100]}: is not a query parameter of {SOCKET_PATH}; known here: sessionId")
    values = query.get("sessionId")
    if values is None:
        return None
    if len(values) > 1 or parse_uuid4(values[0]) is None:
        raise InvalidSessionId("sessionId must be one version 4 UUID in lower case with dashes")
    return values[0]
