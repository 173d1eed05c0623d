"""`peen dev`: tools for those who build on Peen."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

import click
import trio

from peen.cli.streams import echo
from peen.entropy import SystemEntropy
from peen.errors import ConfigurationInvalid
from peen.model.script import load_script
from peen.model.scripted import ScriptedUpstream
from peen.testing.upstream import Options, UpstreamServer
from peen.testing.upstream.anthropic import AnthropicWire
from peen.testing.upstream.openai import OpenAiWire
from peen.testing.upstream.responses import ResponsesWire
from peen.testing.upstream.wire import Wire

BACKLOG: Final = 128
_WIRES: Final[dict[str, tuple[Callable[[], Wire], ...]]] = {
    "anthropic": (AnthropicWire,),
    "openai": (OpenAiWire, ResponsesWire),
}
"""Dialects by the name of their family; the first one lists the models."""


@click.group()
def dev() -> None:
    """Tools for tests and measurements."""


@dev.command()
@click.option("--wire", type=click.Choice(sorted(_WIRES)), default="openai", show_default=True, help="Dialect.")
@click.option("--script", type=click.Path(dir_okay=False, path_type=Path), help="Script; without it the demo model.")
@click.option("--port", type=click.IntRange(0, 65_535), default=0, show_default=True, help="0 takes a free one.")
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--api-key", help="Refuse requests without this key.")
@click.option("--strict/--no-strict", default=True, show_default=True, help="Refuse what a strict provider refuses.")
@click.option(
    "--wants-reasoning", is_flag=True, help="Refuse earlier answers without `reasoning_content`, where there are tools."
)
@click.option("--byte-by-byte", is_flag=True, help="Send streams one byte at a time.")
@click.option("--crlf", is_flag=True, help="End the lines of streams with CR LF.")
def upstream(
    wire: str,
    script: Path | None,
    port: int,
    host: str,
    api_key: str | None,
    strict: bool,
    wants_reasoning: bool,
    byte_by_byte: bool,
    crlf: bool,
) -> None:
    """Play a script as a provider does, over HTTP.

    Prints the base URL when it is ready and ends with SIGINT or SIGTERM. GET /dev/requests lists what was asked.
    """
    played = ScriptedUpstream("dev", None if script is None else load_script(script), with_demo=script is None)
    options = Options(
        strict=strict, api_key=api_key, wants_reasoning=wants_reasoning, byte_by_byte=byte_by_byte, crlf=crlf
    )
    first, *also = (make() for make in _WIRES[wire])
    server = UpstreamServer(played, first, SystemEntropy(), options, also=also)
    sys.setswitchinterval(0.0002)
    trio.run(_serve, server, host, port, first.base_path)


async def _serve(server: UpstreamServer, host: str, port: int, base_path: str) -> None:
    try:
        listeners = await trio.open_tcp_listeners(port, host=host, backlog=BACKLOG)
    except OSError as exc:
        problem = f"cannot listen on {host}:{port}: {exc.strerror}"
        raise ConfigurationInvalid("--port", problem, example="0") from exc
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(trio.serve_listeners, server.serve, listeners))
            bound = listeners[0].socket.getsockname()[1]
            shown = f"[{host}]" if ":" in host else host
            echo(f"listening on http://{shown}:{bound}{base_path}")
            async for _signal in signals:
                nursery.cancel_scope.cancel()
