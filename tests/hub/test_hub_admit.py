from __future__ import annotations

from base64 import urlsafe_b64encode

import pytest

from peen.errors import Refused
from peen.hub.admit import (
    Admitted,
    Head,
    HostPort,
    Rules,
    admit_request,
    admit_socket,
    check_media_type,
    parse_host,
    wants_socket,
)

SESSION = "11111111-1111-4111-8111-111111111111"
TOKEN = "s3cret-tökén-~~~"
SENT = TOKEN.encode().decode("latin-1")  # how the bytes of a header are read
BEARER = "peen.bearer." + urlsafe_b64encode(TOKEN.encode()).decode().rstrip("=")
RULES = Rules.of("192.0.2.7", ["peen.example", "proxy.example:8443"])
HANDSHAKE = {
    "host": "localhost",
    "connection": "keep-alive, Upgrade",
    "upgrade": "websocket",
    "sec-websocket-version": "13",
    "sec-websocket-key": "AAAAAAAAAAAAAAAAAAAAAA==",
}


def head(method: str = "GET", target: str = "/api/v1/sessions", /, **headers: str | None) -> Head:
    named = {"host": "localhost", **{name.replace("_", "-"): value for name, value in headers.items()}}
    return Head(method, target, [(name, value) for name, value in named.items() if value is not None])


def socket_head(target: str = "/ws/v1", /, **changes: str | None) -> Head:
    named: dict[str, str | None] = {name.replace("_", "-"): value for name, value in changes.items()}
    return head("GET", target, **{**HANDSHAKE, **named})


def request_outcome(request: Head, rules: Rules = RULES, *, trusted: bool = False, public: bool = False) -> str:
    try:
        admit_request(rules, request, trusted=trusted, public=public)
        check_media_type(request)
    except Refused as refusal:
        return f"{refusal.status} {refusal.code}"
    return "admitted"


def socket_outcome(request: Head, rules: Rules = RULES, *, trusted: bool = False) -> Admitted | str:
    try:
        return admit_socket(rules, request, trusted=trusted)
    except Refused as refusal:
        return f"{refusal.status} {refusal.code}"


@pytest.mark.parametrize(
    ("host", "admitted"),
    [
        ("localhost", True),
        ("LOCALHOST:9999", True),
        ("127.0.0.1:8080", True),
        ("127.8.9.10", True),
        ("[::1]", True),
        ("[0:0:0:0:0:0:0:1]:8080", True),
        ("192.0.2.7", True),
        ("192.0.2.7:1", True),
        ("peen.example", True),
        ("peen.example:444", True),
        ("Proxy.Example:8443", True),
        ("proxy.example", False),
        ("proxy.example:8444", False),
        ("evil.example", False),
        ("localhost.evil.example", False),
        ("localhost.", False),
        ("0.0.0.0", False),
        ("[::]", False),
        ("192.0.2.8", False),
        ("localhost:99999", False),
        ("localhost:", False),
        ("localhost:80:80", False),
        ("user@localhost", False),
        ("[::1", False),
        ("[::1]x", False),
        ("", False),
        (None, False),
    ],
)
def test_only_names_of_this_server_are_served(host: str | None, admitted: bool) -> None:
    expected = "admitted" if admitted else "403 FORBIDDEN_HOST"

    assert request_outcome(head(host=host)) == expected
    assert socket_outcome(socket_head(host=host)) == (Admitted(None, None) if admitted else expected)


def test_a_wildcard_address_is_nobodys_name() -> None:
    assert request_outcome(head(host="0.0.0.0:8080"), Rules.of("0.0.0.0")) == "403 FORBIDDEN_HOST"
    assert request_outcome(head(host="[::]:8080"), Rules.of("[::]")) == "403 FORBIDDEN_HOST"


def test_two_hosts_are_none() -> None:
    request = Head("GET", "/", [("host", "localhost"), ("host", "localhost")])

    assert request_outcome(request) == "403 FORBIDDEN_HOST"


@pytest.mark.parametrize(
    ("host", "origin", "admitted"),
    [
        ("localhost:8080", None, True),
        ("localhost:8080", "http://localhost:8080", True),
        ("localhost:8080", "HTTP://LOCALHOST:8080", True),
        ("[::1]:8080", "http://[::1]:8080", True),
        ("peen.example", "https://peen.example", True),
        ("peen.example:443", "https://peen.example", True),
        ("peen.example", "http://peen.example:80", True),
        ("localhost:8080", "http://localhost:8081", False),
        ("localhost:8080", "http://localhost", False),
        ("peen.example", "https://peen.example:444", False),
        ("localhost:8080", "http://127.0.0.1:8080", False),
        ("localhost:8080", "http://evil.example", False),
        ("localhost:8080", "http://localhost:8080.evil.example", False),
        ("localhost:8080", "http://localhost:8080@evil.example", False),
        ("localhost:8080", "null", False),
        ("localhost:8080", "", False),
        ("localhost:8080", "chrome-extension://localhost:8080", False),
        ("localhost:8080", "localhost:8080", False),
    ],
)
def test_a_page_may_only_use_the_server_it_came_from(host: str, origin: str | None, admitted: bool) -> None:
    expected = "admitted" if admitted else "403 FORBIDDEN_ORIGIN"

    assert request_outcome(head(host=host, origin=origin)) == expected
    assert socket_outcome(socket_head(host=host, origin=origin)) == (Admitted(None, None) if admitted else expected)


def test_two_origins_are_refused() -> None:
    same = ("origin", "http://localhost")

    assert request_outcome(Head("GET", "/", [("host", "localhost"), same, same])) == "403 FORBIDDEN_ORIGIN"


@pytest.mark.parametrize(
    ("authorization", "admitted"),
    [
        (f"Bearer {SENT}", True),
        (f"bEARER  {SENT} ", True),
        (f"Bearer {SENT}x", False),
        ("Bearer ", False),
        (f"Basic {SENT}", False),
        (SENT, False),
        (None, False),
    ],
)
def test_a_configured_token_is_needed(authorization: str | None, admitted: bool) -> None:
    rules = Rules.of("127.0.0.1", token=TOKEN)

    request, upgrade = head(authorization=authorization), socket_head(authorization=authorization)

    assert request_outcome(request, rules) == ("admitted" if admitted else "401 UNAUTHORIZED")
    assert socket_outcome(upgrade, rules) == (Admitted(None, None) if admitted else "401 UNAUTHORIZED")
    assert request_outcome(request, rules, public=True) == "admitted"
    assert request_outcome(request) == "admitted"


@pytest.mark.parametrize(
    ("protocols", "outcome"),
    [
        (f"peen.v1, {BEARER}", Admitted(None, "peen.v1")),
        (f"{BEARER},peen.v1", Admitted(None, "peen.v1")),
        (BEARER, Admitted(None, None)),
        ("peen.v1", "401 UNAUTHORIZED"),
        (f"peen.v1, {BEARER}=", "401 UNAUTHORIZED"),
        (f"peen.v1, {BEARER[:-1]}", "401 UNAUTHORIZED"),
        (f"peen.v1, {BEARER}, peen.bearer.AAAA", "401 UNAUTHORIZED"),
        (f"peen.v1, peen.bearer.{TOKEN}", "401 UNAUTHORIZED"),
    ],
)
def test_a_browser_sends_its_token_as_a_subprotocol(protocols: str, outcome: Admitted | str) -> None:
    request = socket_head(sec_websocket_protocol=protocols)

    assert socket_outcome(request, Rules.of("127.0.0.1", token=TOKEN)) == outcome


def test_a_wrong_credential_is_not_hidden_by_a_right_one() -> None:
    rules = Rules.of("127.0.0.1", token=TOKEN)
    request = socket_head(authorization="Bearer old", sec_websocket_protocol=f"peen.v1, {BEARER}")

    assert socket_outcome(request, rules) == "401 UNAUTHORIZED"


@pytest.mark.parametrize("query", ["token=x", "access_token=x", "apiToken=x", "Bearer=", "x=abcdefgh"])
def test_a_token_in_the_url_is_refused_with_the_ways_that_work(query: str) -> None:
    rules = Rules.of("127.0.0.1", token="abcdefgh")
    authorized = {"authorization": "Bearer abcdefgh"}

    for outcome in (
        socket_outcome(socket_head(f"/ws/v1?{query}", **authorized), rules),
        request_outcome(head("GET", f"/api/v1/sessions?{query}", **authorized), rules),
    ):
        assert outcome == "400 BAD_REQUEST"
    with pytest.raises(Refused, match=r"Authorization: Bearer.*peen\.bearer"):
        admit_socket(rules, socket_head(f"/ws/v1?{query}", **authorized), trusted=False)


@pytest.mark.parametrize(
    ("query", "outcome"),
    [
        ("", Admitted(None, None)),
        (f"?sessionId={SESSION}", Admitted(SESSION, None)),
        ("?sessionId=", "400 INVALID_SESSION_ID"),
        (f"?sessionId={SESSION.upper().replace('1', 'A')}", "400 INVALID_SESSION_ID"),
        (f"?sessionId={{{SESSION}}}", "400 INVALID_SESSION_ID"),
        ("?sessionId=11111111-1111-1111-8111-111111111111", "400 INVALID_SESSION_ID"),
        (f"?sessionId={SESSION}&sessionId={SESSION}", "400 INVALID_SESSION_ID"),
        (f"?session={SESSION}", "400 VALIDATION_FAILED"),
        ("?sessionId=%ff", "400 BAD_REQUEST"),
    ],
)
def test_the_filter_is_one_canonical_session_id(query: str, outcome: Admitted | str) -> None:
    assert socket_outcome(socket_head("/ws/v1" + query)) == outcome


@pytest.mark.parametrize(
    ("changes", "outcome"),
    [
        ({"connection": "keep-alive"}, "400 BAD_REQUEST"),
        ({"upgrade": "websocket, h2c"}, "400 BAD_REQUEST"),
        ({"sec-websocket-version": "12"}, "426 BAD_REQUEST"),
        ({"sec-websocket-version": None}, "426 BAD_REQUEST"),
        ({"sec-websocket-key": "AAAA"}, "400 BAD_REQUEST"),
        ({"sec-websocket-key": "%" * 24}, "400 BAD_REQUEST"),
        ({"sec-websocket-key": None}, "400 BAD_REQUEST"),
        ({"sec-websocket-protocol": "peen.v1, pe\xe9n"}, "400 BAD_REQUEST"),
        ({"content-length": "5"}, "400 BAD_REQUEST"),
        ({"transfer-encoding": "chunked"}, "400 BAD_REQUEST"),
        ({"content-length": "0"}, Admitted(None, None)),
    ],
)
def test_an_unsound_handshake_is_refused_before_the_upgrade(
    changes: dict[str, str | None], outcome: Admitted | str
) -> None:
    assert socket_outcome(socket_head(**changes)) == outcome


def test_an_upgrade_needs_http_1_1() -> None:
    request = socket_head()

    assert socket_outcome(Head("GET", "/ws/v1", request.headers, "1.0")) == "400 BAD_REQUEST"


@pytest.mark.parametrize(
    ("method", "content_type", "outcome"),
    [
        ("GET", None, "admitted"),
        ("GET", "text/plain", "admitted"),
        ("POST", "application/json", "admitted"),
        ("POST", "Application/JSON; charset=utf-8", "admitted"),
        ("POST", None, "415 BAD_REQUEST"),
        ("POST", "text/plain", "415 BAD_REQUEST"),
        ("POST", "text/plain; application/json", "415 BAD_REQUEST"),
        ("POST", "application/json, text/plain", "415 BAD_REQUEST"),
        ("DELETE", "application/x-www-form-urlencoded", "415 BAD_REQUEST"),
        ("PUT", "multipart/form-data", "415 BAD_REQUEST"),
        ("PATCH", None, "415 BAD_REQUEST"),
    ],
)
def test_a_call_that_changes_something_is_json(method: str, content_type: str | None, outcome: str) -> None:
    assert request_outcome(head(method, content_type=content_type)) == outcome


@pytest.mark.parametrize("target", ["http://evil.example/api/v1/sessions", "*", "localhost:80"])
def test_a_target_that_is_no_path_is_refused(target: str) -> None:
    assert request_outcome(head("GET", target)) == "400 BAD_REQUEST"


def test_a_body_of_two_lengths_is_refused() -> None:
    assert request_outcome(head(content_length="3", transfer_encoding="chunked")) == "400 BAD_REQUEST"


def test_a_trusted_connection_needs_neither_host_nor_token_but_no_page_may_use_it() -> None:
    rules = Rules.of("127.0.0.1", token=TOKEN)

    assert request_outcome(head(host=None), rules, trusted=True) == "admitted"
    assert socket_outcome(socket_head(host="anything"), rules, trusted=True) == Admitted(None, None)
    for origin in ("http://localhost", "null"):
        assert request_outcome(head(origin=origin), rules, trusted=True) == "403 FORBIDDEN_ORIGIN"
        assert socket_outcome(socket_head(origin=origin), rules, trusted=True) == "403 FORBIDDEN_ORIGIN"


@pytest.mark.parametrize(
    ("request_head", "expected"),
    [
        (socket_head(), True),
        (socket_head("/ws/v1/?x=1"), True),
        (socket_head("/ws/v2"), False),
        (socket_head(upgrade="h2c"), False),
        (socket_head(upgrade=None), False),
        (Head("POST", "/ws/v1", socket_head().headers), False),
    ],
)
def test_only_an_upgrade_at_its_path_goes_to_the_socket(request_head: Head, expected: bool) -> None:
    assert wants_socket(request_head) is expected


def test_an_entry_that_is_no_host_is_named() -> None:
    with pytest.raises(ValueError, match="http://peen"):
        Rules.of("127.0.0.1", ["http://peen.example"])


def test_hosts_are_compared_in_one_spelling() -> None:
    assert parse_host("[2001:DB8:0::1]:80") == HostPort("2001:db8::1", 80)
    assert parse_host("PEEN.example") == HostPort("peen.example", None)
    assert parse_host("péen.example") is None
