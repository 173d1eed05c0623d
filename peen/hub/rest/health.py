"""Probes. The listener starts only when everything behind it is ready, so both say the same."""

from __future__ import annotations

from typing import Any

from peen.hub.request import ApiRequest, ApiResponse, json_response
from peen.hub.router import Router
from peen.wire.rest import Health


def add_health(router: Router) -> None:
    """GET /healthz and GET /ready: no token, no parameters."""
    for path in ("/healthz", "/ready"):
        router.add("GET", path, _healthy, public=True)


def _healthy(api: Any, request: ApiRequest) -> ApiResponse:
    return json_response(Health(status="ok"))
