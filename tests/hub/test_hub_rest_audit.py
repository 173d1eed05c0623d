"""The audit of model calls: what it says was asked is what the upstream got."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from engine_kit import Engine, PlayedUpstream, asks, engine, says, work
from rest_kit import engine_in, office
from world_kit import make_home, uuid

from peen.errors import ModelError
from peen.hub.request import Page
from peen.hub.rest.audit import calls_page, runs_page
from peen.model.chatbody import ChatBodies
from peen.model.stream import Finished, ModelRequest, TextDelta, ThinkingDelta, UsageReported
from peen.store import sessions
from peen.wire.worker import Usage

PAGE = Page(limit=200, offset=0, order="asc")
OVERLOADED = ModelError("try again", kind="server_error", retryable=True, status=503)
REFUSED = ModelError("no such model", kind="invalid_request", retryable=False, status=400)


def runs_of(own: Engine, *, wanted: Page = PAGE, stage: str | None = None, state: str | None = None) -> Any:
    session = sessions.by_no(own.db.reader, own.home.no)
    assert session is not None
    return msgspec.json.decode(runs_page(own.db.reader, session, stage=stage, state=state, wanted=wanted).body)


def calls_of(own: Engine, run_id: str, *, wanted: Page = PAGE) -> Any:
    session = sessions.by_no(own.db.reader, own.home.no)
    assert session is not None
    run = msgspec.json.decode(f'"{run_id}"', type=msgspec.UNSET.__class__) if False else run_id
    return msgspec.json.decode(calls_page(own.db.reader, session, run_id=_bytes(run), wanted=wanted).body)


def _bytes(text: str) -> bytes:
    return bytes.fromhex(text.replace("-", ""))
