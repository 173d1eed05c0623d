"""What the fork server loads before its first fork is there in every worker, and was loaded once."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import trio
from space_kit import environment, worker_settings

from peen.space.control import ControlSpace
from peen.space.nannystart import start_nanny
from peen.wire.launch import LaunchDocument

STATE = f"preload-test-{os.getpid()}"
ENTRY = "space_preloaded:worker_main"


def document(short_path: Path) -> LaunchDocument:
    return LaunchDocument(
        session_id="s",
        generation_id="g",
        credential="c",
        socket_path=str(short_path / "w.sock"),
        workspace=str(short_path),
        config_directory=str(short_path),
        agent_space="control",
        marker=f"{STATE}:g",
        settings=worker_settings("leaves"),
    )


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize(
    ("preload", "status"), [((), 3), (("space_preloaded",), 3), (("json", "space_preloaded:load"), 0)]
)
async def test_what_was_loaded_once_is_in_every_worker(
    short_path: Path, nursery: trio.Nursery, early: bool, preload: tuple[str, ...], status: int
) -> None:
    nanny = start_nanny(environment(), state_id=STATE, entry=ENTRY, spares=1, preload=preload) if early else None
    control = ControlSpace(
        state_id=STATE, environment=environment(), nanny=nanny, entry=ENTRY, spares=1, preload=preload
    )
    await nursery.start(control.run)

    workers = [await control.launch(document(short_path), {}) for _ in range(2)]

    with trio.fail_after(20):
        assert [await worker.wait() for worker in workers] == [status, status]
