"""Which function answers which call, and the frame around it: ids, Accept, the session header, errors."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import unquote
from uuid import UUID

import structlog

from peen.entropy import Entropy, SystemEntropy
from peen.errors import NotAcceptable, NotFound, PeenError, ValidationFailed
from peen.hub.request import (
    ApiRequest,
    ApiResponse,
    MethodNotAllowed,
    error_response,
    parse_session_id,
)

log = structlog.get_logger(__name__)

Handler = Callable[[Any, ApiRequest], ApiResponse | Awaitable[ApiResponse]]
"""A resource function: given the application behind the API and one request, it answers or raises a PeenError."""

_JSON_RANGES = frozenset({"*/*", "application/*", "application/json"})


@dataclass(frozen=True, slots=True)
class Route:
    """One operation.

    `session`: needs X-Session-ID. `public`: needs no token and answers any Accept. `any_accept`: answers any Accept,
    since what it answers with is not JSON.
    """

    template: tuple[str, ...]
    handler: Handler
    session: bool = False
    public: bool = False
    any_accept: bool = False


class Router:
    """Operations by path and method. A segment `{name}` of a template takes any one segment of the path."""

    def __init__(self) -> None:
        self._routes: dict[tuple[str, ...], dict[str, Route]] = {}

    def add(
        self,
        method: str,
        template: str,
        handler: Handler,
        *,
        session: bool = False,
        public: bool = False,
        any_accept: bool = False,
    ) -> None:
        """Answer `method` on `template`, such as `/api/v1/session/agents/{agentRunId}`. GET answers HEAD too."""
        segments = _segments(template)
        methods = self._routes.setdefault(segments, {})
        if method in methods:
            raise ValueError(f"{method} {template} has a handler already")
        methods[method] = Route(segments, handler, session, public, any_accept)
        if method == "GET":
            methods["HEAD"] = methods["GET"]

    def match(self, method: str, path: str) -> tuple[Route, dict[str, str]]:
        """The operation and its path parameters, percent-decoded. A trailing slash makes no difference.

        Raises: NotFound, MethodNotAllowed (with the methods that the path has), ValidationFailed for a path
        that is not percent-encoded UTF-8.
        """
        found = self._find(_segments(path))
        if found is None:
            raise NotFound("there is nothing at this path")
        methods, params = found
        if method not in methods:
            raise MethodNotAllowed(methods.keys())
        return methods[method], params

    def is_public(self, method: str, path: str) -> bool:
        """Whether this call needs no token. A path that does not exist is not public."""
        try:
            return self.match(method, path)[0].public
        except PeenError:
            return False

    def routes(self) -> Iterator[tuple[str, str, Route]]:
        """Method, template and route of every operation. HEAD, which comes with every GET, is left out."""
        for template, methods in self._routes.items():
            for method, route in methods.items():
                if method != "HEAD":
                    yield method, "/" + "/".join(template), route

    def _find(self, path: tuple[str, ...]) -> tuple[Mapping[str, Route], dict[str, str]] | None:
        if (exact := self._routes.get(path)) is not None:
            return exact, {}
        for template, methods in self._routes.items():
            if len(template) == len(path) and (params := _bind(template, path)) is not None:
                return methods, params
        return None


def _segments(path: str) -> tuple[str, ...]:
    return tuple(path.rstrip("/").split("/")[1:])


def _bind(template: tuple[str, ...], path: tuple[str, ...]) -> dict[str, str] | None:
    params: dict[str, str] = {}
    for wanted, given in zip(template, path, strict=True):
        if wanted.startswith("{"):
            if not given:
                return None
            try:
                params[wanted[1:-1]] = unquote(given, errors="strict")
            except UnicodeDecodeError as error:
                raise ValidationFailed(f"{wanted[1:-1]}: is not percent-encoded UTF-8") from error
        elif wanted != given:
            return None
    return params


async def dispatch(router: Router, api: Any, request: ApiRequest, entropy: Entropy | None = None) -> ApiResponse:
    """Answer one request; never raises for what a request can cause.

    `request.path` is still percent-encoded. Every answer carries X-Request-ID, and that of a session's operation
    X-Session-ID when it succeeds.
    """
    request = replace(request, request_id=request_id_of(request.headers, entropy or SystemEntropy()))
    headers = {"x-request-id": request.request_id}
    try:
        answer = await _answer(router, api, request, headers)
    except PeenError as error:
        answer = error_response(error)
        if answer.status >= 500:
            log.error("request failed", method=request.method, request_id=request.request_id, error=str(error))
    except Exception as error:  # supervisor: one request's fault is an answer, never the end of the connection
        log.exception("request failed", method=request.method, request_id=request.request_id)
        answer = error_response(error)
    return ApiResponse(answer.status, answer.body, {"content-type": "application/json", **headers, **answer.headers})


async def _answer(router: Router, api: Any, request: ApiRequest, headers: dict[str, str]) -> ApiResponse:
    route, params = router.match(request.method, request.path)
    if not (route.public or route.any_accept):
        check_accept(request.headers.get("accept"))
    session_id = parse_session_id(request.headers.get("x-session-id")) if route.session else None
    outcome = route.handler(api, replace(request, params=params, session_id=session_id))
    answer = await outcome if inspect.isawaitable(outcome) else outcome
    if session_id is not None and answer.status < 400:
        headers["x-session-id"] = session_id
    return answer


def request_id_of(headers: Mapping[str, str], entropy: Entropy) -> str:
    """X-Request-ID as the client sent it, in its usual spelling, or a new one if it is not a UUID."""
    given = headers.get("x-request-id")
    try:
        return str(UUID(given)) if given is not None else str(entropy.uuid4())
    except ValueError:
        return str(entropy.uuid4())


def check_accept(accept: str | None) -> None:
    """Answers are JSON. Raises NotAcceptable for a client that wants something else."""
    if accept is None or not accept.strip():
        return
    for part in accept.split(","):
        media, *parameters = (piece.strip().lower() for piece in part.split(";"))
        refused = any(parameter.replace(" ", "") in {"q=0", "q=0.0", "q=0.00", "q=0.000"} for parameter in parameters)
        if media in _JSON_RANGES and not refused:
            return
    raise NotAcceptable("answers are application/json only; send Accept: application/json, */* or none")
