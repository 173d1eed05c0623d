"""A REST request and its answer as values, and the rules that every resource shares.

Nothing here knows HTTP libraries: the listener, the command line and tests all make an `ApiRequest`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, TypeVar
from urllib.parse import parse_qsl
from uuid import UUID

import msgspec

from peen.errors import BadRequest, InvalidSessionId, PeenError, Refused, StorageFull, ValidationFailed
from peen.ids import parse_uuid4
from peen.wire.problem import problem_text
from peen.wire.rest import ErrorBody, encode

MAX_BODY_BYTES: Final = 1_048_576
MAX_LIMIT: Final = 200
DEFAULT_LIMIT: Final = 50
_SHA256: Final = re.compile("[0-9a-f]{64}")
_MAX_INT: Final = 2**63 - 1  # the largest integer that the store can compare with

Order = Literal["asc", "desc"]
T = TypeVar("T")


class MethodNotAllowed(BadRequest):
    """405. `allowed` are the methods that the path has."""

    status = 405

    def __init__(self, allowed: Collection[str]) -> None:
        super().__init__(f"this path answers {', '.join(sorted(allowed))} only")
        self.allowed = tuple(sorted(allowed))


class BodyTooLarge(BadRequest):
    """413: the body passes `MAX_BODY_BYTES`."""

    status = 413


class UnsupportedMediaType(BadRequest):
    """415: a call that changes something is not sent as JSON."""

    status = 415


class UnsoundFraming(BadRequest):
    """400: two programs could read these bytes as different requests. The connection ends with the answer."""


class BodyTooSlow(BadRequest):
    """408: the rest of the request did not come in time."""

    status = 408


class HeadTooLarge(BadRequest):
    """431: request line and headers pass their limit."""

    status = 431


class UpgradeRequired(BadRequest):
    """426: `/ws/v1` was asked for in a way that cannot become a socket."""

    status = 426


@dataclass(frozen=True, slots=True)
class ApiRequest:
    """One REST call. Header names are in lower case; `query` keeps repeated parameters.

    `params`, `session_id` and `request_id` are filled in by `dispatch`.
    """

    method: str
    path: str
    query: Mapping[str, list[str]] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    params: Mapping[str, str] = field(default_factory=dict)
    session_id: str | None = None
    request_id: str = ""

    @property
    def session(self) -> str:
        """The session of a route that was added with `session=True`."""
        if self.session_id is None:
            raise InvalidSessionId("X-Session-ID is missing; it names the session, as sessions/open returned it")
        return self.session_id


@dataclass(frozen=True, slots=True)
class ApiResponse:
    """One answer. `body` is JSON unless `headers` says otherwise in `content-type`."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


def json_response(value: msgspec.Struct, status: int = 200, headers: Mapping[str, str] | None = None) -> ApiResponse:
    """`value` as the body of an answer."""
    return ApiResponse(status, encode(value), headers or {})


def parse_query(text: str) -> dict[str, list[str]]:
    """A query string, percent-decoded, with empty values kept. Raises BadRequest when it is not UTF-8 text."""
    query: dict[str, list[str]] = {}
    try:
        pairs = parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=100)
    except ValueError as error:
        raise BadRequest("the query string is not readable: percent-encoded UTF-8, at most 100 parameters") from error
    for name, value in pairs:
        query.setdefault(name, []).append(value)
    return query


# --- what a handler asks of its request -----------------------------------------------------------------------------


def decode_body(request: ApiRequest, type: type[T]) -> T:
    """The body as `type`, whose members are all that is allowed.

    Raises: ValidationFailed that names the field; BodyTooLarge.
    """
    if len(request.body) > MAX_BODY_BYTES:
        raise BodyTooLarge(f"the body is larger than {MAX_BODY_BYTES} bytes")
    if not request.body:
        raise ValidationFailed("body: is missing; this call takes one JSON object")
    try:
        try:
            return msgspec.json.decode(request.body, type=type)
        except msgspec.ValidationError as error:
            if "Expected `int`, got `float`" not in str(error):
                raise
            # To JSON Schema, and to languages that know one kind of number, 3.0 is a whole number.
            return msgspec.json.decode(request.body, type=type, strict=False)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise ValidationFailed(problem_text(error, whole="body", kind=type, given=request.body)) from error


def check_no_body(request: ApiRequest) -> None:
    """For calls without input: nothing at all, or an empty JSON object. Raises: ValidationFailed, BodyTooLarge."""
    if not request.body:
        return
    try:
        decode_body(request, _Nothing)
    except ValidationFailed:
        raise ValidationFailed("body: this call takes none") from None


class _Nothing(msgspec.Struct, forbid_unknown_fields=True):
    """An object without members."""


def check_query(request: ApiRequest, allowed: Collection[str] = ()) -> None:
    """Refuse parameters that the operation does not have, and repeated ones. Raises ValidationFailed."""
    for name, values in request.query.items():
        if name not in allowed:
            known = f"; known here: {', '.join(sorted(allowed))}" if allowed else ""
            raise ValidationFailed(f"{name[:100]}: is not a query parameter of this operation{known}")
        if len(values) > 1:
            raise ValidationFailed(f"{name}: is given {len(values)} times; once is allowed")


def query_value(request: ApiRequest, name: str) -> str | None:
    """The value of one parameter, or None where it is absent."""
    values = request.query.get(name)
    return values[0] if values else None


def query_choice(request: ApiRequest, name: str, choices: Collection[str]) -> str | None:
    """One of `choices`, or None where the parameter is absent. Raises ValidationFailed."""
    value = query_value(request, name)
    if value is not None and value not in choices:
        raise ValidationFailed(f"{name}: must be one of {', '.join(choices)}")
    return value


def query_int(request: ApiRequest, name: str, *, default: int, minimum: int, maximum: int) -> int:
    """A whole number in decimal digits. Raises ValidationFailed outside `minimum`..`maximum`."""
    text = query_value(request, name)
    if text is None:
        return default
    # isdecimal alone would take other scripts' digits; a long number is refused before it is converted.
    if not (text.isascii() and text.isdecimal() and len(text) <= 19 and minimum <= int(text) <= maximum):
        bounds = f"{minimum}..{maximum}" if maximum < _MAX_INT else f"{minimum} or more"
        raise ValidationFailed(f"{name}: must be a whole number, {bounds}")
    return int(text)


def path_uuid(request: ApiRequest, name: str) -> UUID:
    """The path parameter `name`. Raises ValidationFailed unless it is a UUID as Peen writes them."""
    found = parse_uuid4(request.params[name])
    if found is None:
        raise ValidationFailed(f"{name}: must be a version 4 UUID in lower case with dashes")
    return found


def path_sha256(request: ApiRequest, name: str) -> bytes:
    """The path parameter `name`, 32 bytes. Raises ValidationFailed."""
    text = request.params[name]
    if _SHA256.fullmatch(text) is None:
        raise ValidationFailed(f"{name}: must be a SHA-256 in 64 lower-case hexadecimal digits")
    return bytes.fromhex(text)


@dataclass(frozen=True, slots=True)
class Page:
    """Rows `offset`.. of a list, at most `limit` of them."""

    limit: int
    offset: int
    order: Order


def page(request: ApiRequest, *, ordered: bool = False, also: Collection[str] = ()) -> Page:
    """The paging of a list; `ordered` lists take `order` as well, `also` names the list's own filters.

    Raises: ValidationFailed, also for a parameter that is not among all these.
    """
    check_query(request, ["limit", "offset", *(["order"] if ordered else []), *also])
    return Page(
        limit=query_int(request, "limit", default=DEFAULT_LIMIT, minimum=1, maximum=MAX_LIMIT),
        offset=query_int(request, "offset", default=0, minimum=0, maximum=_MAX_INT),
        order="desc" if query_choice(request, "order", ("asc", "desc")) == "desc" else "asc",
    )


@dataclass(frozen=True, slots=True)
class CursorPage:
    """At most `limit` items that come after `cursor`."""

    cursor: int
    limit: int


def cursor_page(request: ApiRequest, *, default_limit: int, max_limit: int, also: Collection[str] = ()) -> CursorPage:
    """The position in a list that is read onwards from a cursor. Raises ValidationFailed."""
    check_query(request, ["cursor", "limit", *also])
    return CursorPage(
        cursor=query_int(request, "cursor", default=0, minimum=0, maximum=_MAX_INT),
        limit=query_int(request, "limit", default=default_limit, minimum=1, maximum=max_limit),
    )


def parse_session_id(text: str | None) -> str:
    """The value of X-Session-ID. Raises InvalidSessionId."""
    if text is None or parse_uuid4(text) is None:
        raise InvalidSessionId("X-Session-ID must be a version 4 UUID in lower case with dashes")
    return text


# --- failures -------------------------------------------------------------------------------------------------------


def public_error(error: Exception) -> tuple[int, ErrorBody]:
    """Status and envelope that may be shown for `error`. Only a Refused speaks for itself."""
    if isinstance(error, Refused):
        return error.status, ErrorBody(code=error.code, message=error.message, details=error.details)
    if isinstance(error, StorageFull):
        # Its own text names a file of the server.
        text = "the disk that holds Peen's state is full; nothing was stored, so the same request may be sent again"
        return error.status, ErrorBody(code=error.code, message=text)
    return 500, ErrorBody(code=PeenError.code, message="internal server error")


def error_response(error: Exception) -> ApiResponse:
    """The answer to a request that failed with `error`."""
    status, body = public_error(error)
    headers: dict[str, str] = {}
    if isinstance(error, MethodNotAllowed):
        headers["allow"] = ", ".join(error.allowed)
    elif isinstance(error, UnsoundFraming):
        headers["connection"] = "close"
    elif isinstance(error, UpgradeRequired):
        headers |= {"upgrade": "websocket", "sec-websocket-version": "13", "connection": "close"}
    return ApiResponse(status, encode(body), headers)
