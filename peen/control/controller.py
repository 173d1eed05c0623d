"""The controller: control-core, then control-api; stopped in reverse, within its time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

import structlog
import trio

from peen.actors import lone_exceptions
from peen.control.core import Core, StopClock, control_core
from peen.control.lock import ControllerLock
from peen.entropy import Entropy
from peen.errors import ConfigurationInvalid
from peen.hub.admit import Rules
from peen.hub.listener import Hub, listen_tcp, listen_unix
from peen.hub.rest.audit import add_audit
from peen.hub.rest.compactions import add_compactions
from peen.hub.rest.events import add_events
from peen.hub.rest.executions import add_executions
from peen.hub.rest.health import add_health
from peen.hub.rest.jobs import add_jobs
from peen.hub.rest.maintenance import add_maintenance
from peen.hub.rest.models import add_models
from peen.hub.rest.notices import add_notices
from peen.hub.rest.sessions import add_sessions
from peen.hub.rest.snapshots import add_snapshots
from peen.hub.rest.transcript import add_transcript
from peen.hub.rest.workers import add_workers
from peen.hub.router import Router
from peen.settings import Settings
from peen.space.nannystart import NannyProcess
from peen.store.reserve import RESERVE_BYTES
from peen.wire.client import ClientLimits

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Controller:
    """A running controller. `address` is its base URL, None without a TCP listener."""

    settings: Settings
    core: Core
    router: Router
    hub: Hub
    address: str | None


def build_router() -> Router:
    """Every REST operation."""
    router = Router()
    resources = (
        add_health,
        add_sessions,
        add_transcript,
        add_events,
        add_executions,
        add_jobs,
        add_notices,
        add_workers,
        add_audit,
        add_compactions,
        add_snapshots,
        add_models,
        add_maintenance,
    )
    for add in resources:
        add(router)
    return router


@asynccontextmanager
async def controller(
    settings: Settings,
    *,
    environ: Mapping[str, str],
    lock: ControllerLock,
    nanny: NannyProcess,
    tcp: bool,
    entropy: Entropy,
    reserve_bytes: int = RESERVE_BYTES,
) -> AsyncIterator[Controller]:
    """Run a controller; the body runs once both services are ready. Leaving it stops them in reverse order.

    The stop may take PEEN_SHUTDOWN_TIMEOUT; what has not ended by then is abandoned, and the caller ends the process.
    Raises: ConfigurationInvalid, StorageError when it cannot start.
    """
    stop = StopClock()
    with lone_exceptions():
        async with control_core(
            settings, environ=environ, nanny=nanny, entropy=entropy, stop=stop, reserve_bytes=reserve_bytes
        ) as core:
            router = build_router()
            hub = Hub(
                backend=core.sessions,
                router=router,
                api=core.api,
                fanout=core.fanout,
                rules=Rules.of(settings.http_listen_address.host, settings.allowed_hosts, settings.api_token),
                entropy=entropy,
                client_limits=ClientLimits(
                    max_message_bytes=settings.max_message_bytes,
                    max_system_prompt_bytes=settings.max_system_prompt_bytes,
                    max_images_per_message=settings.max_images_per_message,
                    max_image_bytes=settings.max_image_bytes,
                ),
            )
            async with _control_api(settings, core, hub, stop, tcp=tcp) as address:
                if address is not None:
                    lock.update(address=address)
                log.info("control-api ready", address=address, control_socket=str(settings.control_socket))
                try:
                    yield Controller(settings, core, router, hub, address)
                finally:
                    stop.begin(settings.shutdown_timeout_ms / 1000)
                    log.info("stopping")


@asynccontextmanager
async def _control_api(
    settings: Settings, core: Core, hub: Hub, stop: StopClock, *, tcp: bool
) -> AsyncIterator[str | None]:
    """The listeners. At the end: end the turns while clients can still see it, then close."""
    async with trio.open_nursery() as nursery:
        await nursery.start(hub.run)
        hub.listen([listen_unix(settings.control_socket)], trusted=True)
        address = None
        if tcp:
            await hub.warm()
            address = await _listen_tcp(settings, hub)
        try:
            yield address
        finally:
            with stop.scope():
                await core.end_turns()
            nursery.cancel_scope.cancel()
            settings.control_socket.unlink(missing_ok=True)


async def _listen_tcp(settings: Settings, hub: Hub) -> str:
    wanted = settings.http_listen_address
    try:
        listeners = await listen_tcp(wanted.host, wanted.port)
    except OSError as refused:
        raise ConfigurationInvalid(
            "PEEN_HTTP_LISTEN_ADDRESS", f"cannot listen on {wanted}: {refused.strerror}", example="127.0.0.1:8081"
        ) from refused
    hub.listen(listeners, trusted=False)
    port = listeners[0].socket.getsockname()[1]
    host = wanted.host or "127.0.0.1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
