"""HTTP by hypercorn and quart-trio, reduced to one door: every request becomes an `ApiRequest`.

Importing this module takes most of a second, so the listener does it when the first HTTP request comes, or before.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final

import structlog
import trio
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config
from hypercorn.events import Event, Updated
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ASGIReceiveCallable, ConnectionState
from quart import Request, Response, Websocket
from quart_trio import QuartTrio
from quart_trio.asgi import TrioASGIHTTPConnection

from peen.entropy import Entropy
from peen.errors import BadRequest, PeenError
from peen.hub.admit import SOCKET_PATH, Head, Rules, admit_request, check_media_type
from peen.hub.request import (
    MAX_BODY_BYTES,
    ApiRequest,
    ApiResponse,
    BodyTooLarge,
    BodyTooSlow,
    UpgradeRequired,
    error_response,
    parse_query,
)
from peen.hub.router import Router, dispatch, request_id_of
from peen.hub.stream import HubStream

log = structlog.get_logger(__name__)

BODY_S: Final = 30.0  # seconds for a whole body; at most a megabyte
DISCARD_S: Final = 2.0  # seconds to read what a refused client still sends, so that it can read the answer
_TRUSTED: Final = "peen.trusted"  # our entry in the connection's ASGI state

_ALWAYS: Final = {"x-content-type-options": "nosniff", "cache-control": "no-store"}


class HttpServer:
    """Serves the HTTP connections of one hub."""

    def __init__(self, router: Router, api: Any, rules: Rules, entropy: Entropy, *, idle_s: float) -> None:
        """`idle_s`: seconds that a kept connection may take to send its next head."""
        self._app = ASGIWrapper(HubApp(router, api, rules, entropy))
        self._config = Config()
        self._config.include_server_header = False
        self._config.accesslog = None  # its lines would hold query strings
        self._config.errorlog = logging.getLogger("hypercorn.error")
        self._config.keep_alive_timeout = idle_s
        self._context = WorkerContext(None)

    async def serve(self, stream: HubStream, *, trusted: bool) -> None:
        """Serve one connection until it closes. hypercorn closes `stream`."""
        state = ConnectionState({_TRUSTED: trusted})
        transport: Any = stream  # declared as a TLS stream; any stream with a `socket` will do
        await HubTCPServer(self._app, self._config, self._context, state, transport).run()

    async def stop(self) -> None:
        """Close idle connections, and busy ones after their answer."""
        await self._context.terminated.set()


class HubTCPServer(TCPServer):
    """One connection, which ends when its client has closed it.

    The class above would keep it, and its file descriptor, until the idle clock ran out.
    """

    _ended = False

    async def protocol_send(self, event: Event) -> None:
        if not (self._ended and isinstance(event, Updated)):  # an answer that is still written is the last one
            await super().protocol_send(event)

    async def _read_data(self) -> None:
        await super()._read_data()
        self._ended = True
        await self.idle_task.stop()


class HubConnection(TrioASGIHTTPConnection):
    """One request. A call whose body has arrived is carried out, whether or not the client waits for the answer.

    The class above cancels at the server's own notice that the exchange is over. That would also cut off hypercorn
    in the middle of closing the connection, or of starting the clock of a kept one.
    """

    async def handle_messages(self, nursery: trio.Nursery, request: Request, receive: ASGIReceiveCallable) -> None:  # type: ignore[override]
        while (message := await receive())["type"] == "http.request":
            request.body.append(message["body"])
            if not message["more_body"]:
                request.body.set_complete()
                return
        nursery.cancel_scope.cancel()  # gone before its body was complete


class HubApp(QuartTrio):
    """Quart with its routing left out: the hub's router decides, so that the same calls work without HTTP."""

    asgi_http_class = HubConnection

    def __init__(self, router: Router, api: Any, rules: Rules, entropy: Entropy) -> None:
        super().__init__("peen", static_folder=None)
        self._hub_router, self._api, self._rules, self._entropy = router, api, rules, entropy

    async def handle_request(self, request: Request) -> Response:
        """Admit, read the body, dispatch. Every failure has the error envelope."""
        head = _head(request.scope)
        began = self._entropy.monotonic_s()
        try:
            self._admit(request.scope, head)
            query = parse_query(head.query)
            body = await _read_body(request)
        except PeenError as refusal:
            await _discard_body(request)
            answer = self._refusal(head, refusal)
        else:
            api_request = ApiRequest(head.method, head.path, query, _single(head), body)
            answer = await dispatch(self._hub_router, self._api, api_request, self._entropy)
        duration_ms = round((self._entropy.monotonic_s() - began) * 1000, 1)
        # The path alone: a query string may hold what should not be kept.
        log.debug("request", method=head.method, path=head.path, status=answer.status, duration_ms=duration_ms)
        return Response(answer.body, answer.status, {**_ALWAYS, **answer.headers})

    async def handle_websocket(self, websocket: Websocket) -> Response:
        """An upgrade that the listener did not take: on a connection that has served HTTP, or at another path."""
        head = _head({**websocket.scope, "method": "GET"})
        late = head.path.rstrip("/") == SOCKET_PATH
        reason = "open a new connection for the socket" if late else f"sockets are served at {SOCKET_PATH} only"
        answer = self._refusal(head, UpgradeRequired(reason))
        return Response(answer.body, answer.status, {**_ALWAYS, **answer.headers})

    def _admit(self, scope: Any, head: Head) -> None:
        if scope["http_version"] not in ("1.0", "1.1"):
            raise BadRequest("HTTP/1.1 is the only version that is served")
        trusted = bool(scope["state"].get(_TRUSTED))
        public = self._hub_router.is_public(head.method, head.path)
        admit_request(self._rules, head, trusted=trusted, public=public)
        if head.path.rstrip("/") == SOCKET_PATH:
            raise UpgradeRequired(f"{SOCKET_PATH} is a WebSocket; send an upgrade")
        self._hub_router.match(head.method, head.path)
        check_media_type(head)

    def _refusal(self, head: Head, refusal: PeenError) -> ApiResponse:
        answer = error_response(refusal)
        request_id = request_id_of(_single(head), self._entropy)
        headers = {"content-type": "application/json", "x-request-id": request_id, **answer.headers}
        return ApiResponse(answer.status, answer.body, headers)


def _head(scope: Any) -> Head:
    target = scope["raw_path"].decode("latin-1")
    if scope["query_string"]:
        target += "?" + scope["query_string"].decode("latin-1")
    headers = [(name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in scope["headers"]]
    return Head(scope["method"], target, headers, scope["http_version"])


def _single(head: Head) -> Mapping[str, str]:
    """Headers as a mapping; lines of one name are joined as RFC 9110 section 5.3 says."""
    joined: dict[str, str] = {}
    for name, value in head.headers:
        joined[name] = f"{joined[name]}, {value}" if name in joined else value
    return joined


async def _read_body(request: Request) -> bytes:
    """The whole body. What passes the limit is not kept. Raises BodyTooLarge, BodyTooSlow."""
    body = bytearray()
    with trio.move_on_after(BODY_S) as limit:
        async for piece in request.body:
            body += piece
            if len(body) > MAX_BODY_BYTES:
                raise BodyTooLarge(f"the body is larger than {MAX_BODY_BYTES} bytes")
    if limit.cancelled_caught:
        raise BodyTooSlow(f"the body did not arrive within {BODY_S:g} s")
    return bytes(body)


async def _discard_body(request: Request) -> None:
    with trio.move_on_after(DISCARD_S):
        async for _ in request.body:
            pass
