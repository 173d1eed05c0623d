"""The fork server by itself, and the controller's end of it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import trio
from space_kit import ENTRY, environment, gone, worker_settings

from peen.errors import WorkerFailed
from peen.space.control import ControlSpace, ControlWorker
from peen.space.nannylink import NannyLink
from peen.space.nannystart import start_nanny
from peen.space.orders import Exited, Kill, Spawn, Spawned, decode_order, decode_report, pack, receive, send
from peen.space.proc import all_stats, descendants, read_stat
from peen.wire.launch import LaunchDocument
from peen.worker.framing import HEADER

STATE = f"nanny-test-{os.getpid()}"  # a sweep must not reach the tests of somebody else


def document(short_path: Path, behaviour: str = "leaves", **changes: str) -> LaunchDocument:
    fields = {
        "session_id": "s", "generation_id": "g", "credential": "c", "socket_path": str(short_path / "w.sock"),
        "workspace": str(short_path), "config_directory": str(short_path), "agent_space": "control",
        "marker": f"{STATE}:g",
    } | changes  # fmt: skip
    return LaunchDocument(settings=worker_settings(behaviour), **fields)


def space(spares: int = 0, entry: str = ENTRY) -> ControlSpace:
    return ControlSpace(state_id=STATE, environment=environment(), entry=entry, spares=spares)


async def launch(control: ControlSpace, short_path: Path, behaviour: str) -> ControlWorker:
    return await control.launch(document(short_path, behaviour), {})


def test_orders_read_back_as_they_were_written() -> None:
    orders = [
        Spawn(ref=1, cwd="/", environment={"A": "\xff"}, entry="a:b"),
        Kill(pid=3, signal=9, tree=True),
    ]
    assert [decode_order(pack(order)[HEADER.size :]) for order in orders] == orders
    reports = [Spawned(ref=1, pid=2, start_time=3), Exited(pid=2, status=-9, leftover=[5])]
    assert [decode_report(pack(report)[HEADER.size :]) for report in reports] == reports


def test_a_receiver_that_closes_as_soon_as_it_has_everything_is_no_failure() -> None:
    ours, theirs = socket.socketpair()
    received: list[bytes] = []

    class Eager(socket.socket):
        """Its peer is faster than we are."""

        def sendmsg(self, *arguments: Any) -> int:
            sent = super().sendmsg(*arguments)
            message = receive(theirs)
            assert message is not None
            received.append(message[0])
            os.close(message[1][0])
            theirs.close()
            return sent

    order = Kill(pid=3, signal=9, tree=False)
    with Eager(fileno=ours.detach()) as channel, open(os.devnull) as null:
        send(channel, pack(order), (null.fileno(),))

    assert [decode_order(body) for body in received] == [order]


async def test_workers_report_their_exit_codes(short_path: Path, nursery: trio.Nursery) -> None:
    control = space()
    await nursery.start(control.run)

    workers = [await launch(control, short_path, "leaves") for _ in range(3)]

    with trio.fail_after(10):
        assert [await worker.wait() for worker in workers] == [5, 5, 5]


async def test_a_worker_takes_sigterm_from_its_first_moment(short_path: Path, nursery: trio.Nursery) -> None:
    control = space()
    await nursery.start(control.run)

    worker = await launch(control, short_path, "silent")
    worker.terminate()

    with trio.fail_after(10):
        assert await worker.wait() == -signal.SIGTERM


async def test_a_spare_becomes_the_worker(short_path: Path, nursery: trio.Nursery) -> None:
    control = space(spares=1)
    await nursery.start(control.run)
    first = await launch(control, short_path, "silent")
    assert control.nanny_pid is not None
    spare = await only_child_but(control.nanny_pid, first.pid)

    worker = await launch(control, short_path, "leaves")

    assert worker.pid == spare
    with trio.fail_after(10):
        assert await worker.wait() == 5


def children(pid: int) -> list[int]:
    return [stat.pid for stat in all_stats().values() if stat.ppid == pid]


async def only_child_but(pid: int, known: int) -> int:
    for _ in range(200):
        if new := set(children(pid)) - {known}:
            return new.pop()
        await trio.sleep(0.02)  # the fork server waits for a quiet moment before it forks a spare
    raise AssertionError("no spare was forked")


async def test_a_spare_that_was_killed_is_not_used(short_path: Path, nursery: trio.Nursery) -> None:
    control = space(spares=1)
    await nursery.start(control.run)
    first = await launch(control, short_path, "silent")
    assert control.nanny_pid is not None
    spare = await only_child_but(control.nanny_pid, first.pid)

    os.kill(spare, signal.SIGKILL)
    await gone(spare, within_s=5)
    worker = await launch(control, short_path, "leaves")

    assert worker.pid != spare
    with trio.fail_after(10):
        assert await worker.wait() == 5


async def test_a_name_that_is_not_utf8_reaches_the_worker(short_path: Path, nursery: trio.Nursery) -> None:
    odd = os.fsdecode(b"odd-\xff")
    (short_path / odd).mkdir()
    variable = {**environment(), "ODD": odd}
    control = ControlSpace(state_id=STATE, environment=variable, entry=ENTRY, spares=0)
    await nursery.start(control.run)

    worker = await control.launch(document(short_path), {})

    with trio.fail_after(10):
        assert await worker.wait() == 5


async def test_an_environment_larger_than_a_socket_buffer_is_handed_over(
    short_path: Path, nursery: trio.Nursery
) -> None:
    variable = {**environment(), **{f"LARGE_{n}": "x" * 100_000 for n in range(5)}}
    control = ControlSpace(state_id=STATE, environment=variable, entry=ENTRY, spares=1)
    await nursery.start(control.run)

    with trio.fail_after(20):
        assert await (await control.launch(document(short_path), {})).wait() == 5


async def test_a_document_over_the_limit_is_refused_before_the_launch(short_path: Path, nursery: trio.Nursery) -> None:
    control = space()
    await nursery.start(control.run)

    with pytest.raises(WorkerFailed, match="the limit is 65536"):
        await control.launch(document(short_path, marker="x" * 70_000), {})


async def test_a_fork_server_that_cannot_import_its_worker_fails_every_launch(
    short_path: Path, nursery: trio.Nursery
) -> None:
    control = space(entry="no_such_module:main")
    await nursery.start(control.run)

    for _ in range(2):
        with pytest.raises(WorkerFailed, match="fork server is gone"):
            await launch(control, short_path, "leaves")


async def test_a_frozen_fork_server_is_killed_and_replaced(
    short_path: Path, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    control = space()
    await nursery.start(control.run)
    worker = await launch(control, short_path, "silent")
    frozen = control.nanny_pid
    assert frozen is not None

    os.kill(frozen, signal.SIGSTOP)
    monkeypatch.setattr("peen.space.nannylink.ANSWER_S", 0.3)
    with pytest.raises(WorkerFailed, match="did not answer"):
        await launch(control, short_path, "leaves")
    monkeypatch.undo()

    with trio.fail_after(10):
        assert await worker.wait() == -signal.SIGKILL
        assert await (await launch(control, short_path, "leaves")).wait() == 5
    assert control.nanny_pid != frozen


async def test_a_worker_that_a_frozen_fork_server_does_not_end_is_ended_all_the_same(
    short_path: Path, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    control = space()
    await nursery.start(control.run)
    worker = await launch(control, short_path, "silent")
    assert control.nanny_pid is not None

    os.kill(control.nanny_pid, signal.SIGSTOP)
    monkeypatch.setattr("peen.space.control.INSIST_S", 0.3)
    worker.kill()

    with trio.fail_after(10):
        await worker.wait()
    assert read_stat(worker.pid) is None or read_stat(worker.pid).state == "Z"  # type: ignore[union-attr]


async def test_ending_the_space_ends_every_process(short_path: Path) -> None:
    async with trio.open_nursery() as nursery:
        control = space(spares=1)
        await nursery.start(control.run)
        worker = await launch(control, short_path, "silent")
        nanny = control.nanny_pid
        assert nanny is not None
        below = descendants([nanny], all_stats())
        nursery.cancel_scope.cancel()

    assert worker.pid in below
    assert [read_stat(pid) for pid in (nanny, *below)] == [None] * (1 + len(below))


async def test_the_fork_server_ignores_the_terminal(short_path: Path, nursery: trio.Nursery) -> None:
    control = space()
    await nursery.start(control.run)
    await launch(control, short_path, "silent")
    assert control.nanny_pid is not None

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(control.nanny_pid, number)
    worker = await launch(control, short_path, "leaves")

    with trio.fail_after(10):
        assert await worker.wait() == 5
    assert os.getsid(control.nanny_pid) == control.nanny_pid


async def test_no_descriptor_is_left_behind(short_path: Path) -> None:
    async def once() -> None:
        async with trio.open_nursery() as nursery:
            control = space()
            await nursery.start(control.run)
            await (await launch(control, short_path, "leaves")).wait()
            nursery.cancel_scope.cancel()

    await once()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        await once()

    assert len(os.listdir("/proc/self/fd")) == before


def test_a_fork_server_without_a_controller_ends_at_once() -> None:
    process = start_nanny(environment(), state_id=STATE, entry=ENTRY, spares=1)

    process.channel.close()

    assert process.popen.wait(20) == 0


def test_a_library_in_the_current_directory_is_not_imported(tmp_path: Path) -> None:
    (tmp_path / "yaml.py").write_text("raise SystemExit(99)")
    program = (
        "import sys, os; from peen.space.nannystart import start_nanny; import time\n"
        f"os.chdir({str(tmp_path)!r}); p = start_nanny(dict(os.environ), state_id='x', entry='trio:run', spares=0)\n"
        "p.channel.shutdown(1); print(p.popen.wait(20))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip

    assert done.stdout.strip() == "0"


async def test_a_link_that_is_lost_refuses_to_spawn() -> None:
    link = NannyLink(start_nanny(environment(), state_id=STATE, entry=ENTRY, spares=0))
    async with trio.open_nursery() as nursery:
        await nursery.start(link.run)
        link.destroy()
        with trio.fail_after(10):
            await link.lost.wait()

    with pytest.raises(WorkerFailed, match="gone"):
        await link.spawn(Spawn(ref=1, cwd="/", environment={}, entry=ENTRY), (0, 1, 2))
    await gone(link.pid, within_s=1)
