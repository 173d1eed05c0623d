"""The supervisor over real processes: one worker a session, whatever happens to it."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest
import trio
from space_kit import QUICK, MemoryGenerations, ask, gone, running

import peen
from peen.errors import AgentSpaceNotAllowed, LinkLost, NotFound, StorageFailed, StorageFull, WorkerFailed
from peen.space.proc import read_stat, sweep
from peen.wire.worker import Hello, Result, decode_from_controller, encode
from peen.worker.framing import HEADER, FrameStream


async def test_a_worker_is_started_once_and_used_by_all(short_path: Path) -> None:
    async with running(short_path) as world:
        links = []

        async def use() -> None:
            links.append(await world.supervisor.ensure(world.place))

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(use)

        assert links[0] is links[1] is links[2]
        assert list(world.store.rows.values()) == [["requested", "starting", "ready"]]


async def test_a_stopped_worker_is_recorded_and_leaves_no_socket(short_path: Path) -> None:
    async with running(short_path) as world:
        await world.supervisor.ensure(world.place)

        await world.supervisor.stop(world.place.session_id, "idle")

        assert list(world.store.rows.values()) == [["requested", "starting", "ready", "stopping", "stopped", "idle"]]
        assert list(world.store.exit_codes.values()) == [0]
        assert read_stat(world.store.processes[0][0]) is None
        assert list((short_path / "s").iterdir()) == []
        assert world.lost == []


async def test_after_a_stop_the_next_message_starts_a_new_generation(short_path: Path) -> None:
    async with running(short_path) as world:
        first = await world.supervisor.ensure(world.place)
        await world.supervisor.stop(world.place.session_id, "idle")

        second = await world.supervisor.ensure(world.place)

        assert second is not first
        assert len(world.store.rows) == 2


async def test_another_place_replaces_the_worker(short_path: Path) -> None:
    (short_path / "other").mkdir()
    async with running(short_path) as world:
        await world.supervisor.ensure(world.place)

        link = await world.supervisor.ensure(replace(world.place, workspace=str(short_path / "other")))

        assert json.loads(await ask(link, "place"))[0] == str(short_path / "other")
        first, second = world.store.rows.values()
        assert first[-2] == "stopped"
        assert second[-1] == "ready"


async def test_a_space_that_is_not_offered_is_refused(short_path: Path) -> None:
    async with running(short_path) as world:
        with pytest.raises(AgentSpaceNotAllowed, match="docker:x"):
            await world.supervisor.ensure(replace(world.place, agent_space="docker:x"))

        assert world.store.rows == {}


async def test_a_worker_that_exits_before_it_is_ready_fails_with_its_code(short_path: Path) -> None:
    async with running(short_path, behaviour="leaves") as world:
        with pytest.raises(WorkerFailed, match="exited with code 5 before it was ready"):
            await world.supervisor.ensure(world.place)

        assert [row[-2] for row in world.store.rows.values()] == ["failed"]
        assert list(world.store.exit_codes.values()) == [5]


async def test_a_workspace_that_is_gone_fails_the_start(short_path: Path) -> None:
    async with running(short_path) as world:
        with pytest.raises(WorkerFailed, match="exited with code 71"):
            await world.supervisor.ensure(replace(world.place, workspace=str(short_path / "missing")))


async def test_a_worker_that_never_gets_ready_is_given_up_and_killed(short_path: Path) -> None:
    async with running(short_path, behaviour="silent", limits=replace(QUICK, ready_s=0.5)) as world:
        with pytest.raises(WorkerFailed, match=r"not ready within 0\.5 s"):
            await world.supervisor.ensure(world.place)

        assert read_stat(world.store.processes[0][0]) is None
        assert list(world.store.exit_codes.values()) == [-signal.SIGKILL]


async def test_a_stubborn_worker_is_killed_when_its_time_is_over(short_path: Path) -> None:
    limits = replace(QUICK, shutdown_s=0.2, term_s=0.2)
    async with running(short_path, behaviour="stubborn", limits=limits) as world:
        await world.supervisor.ensure(world.place)

        await world.supervisor.stop(world.place.session_id, "idle")

        assert next(iter(world.store.rows.values()))[-2:] == ["stopped", "idle; it had to be killed"]
        assert list(world.store.exit_codes.values()) == [-signal.SIGKILL]


async def test_a_killed_worker_is_told_as_lost_once_it_and_its_orphans_are_gone(short_path: Path) -> None:
    async with running(short_path) as world:
        link = await world.supervisor.ensure(world.place)
        orphans = [int(await ask(link, verb)) for verb in ("orphan", "orphan bare", "orphan")]
        alive_at_loss: list[bool] = []
        pid = world.store.processes[0][0]
        assert {read_stat(orphan).ppid for orphan in orphans} == {pid}  # type: ignore[union-attr]

        os.kill(pid, signal.SIGKILL)
        with pytest.raises(LinkLost):
            await ask(link, "wait")
        with trio.fail_after(10):
            await world.heard.wait()
        alive_at_loss += [read_stat(one) is not None for one in (pid, *orphans)]

        assert alive_at_loss == [False] * 4
        assert world.lost_alive == [False]
        assert world.lost[0][2] == "the worker was ended by signal 9"
        assert next(iter(world.store.rows.values()))[-2:] == ["failed", "the worker was ended by signal 9"]


async def test_a_frozen_worker_is_declared_lost_and_killed(short_path: Path) -> None:
    async with running(short_path, limits=replace(QUICK, beat_s=1)) as world:
        link = await world.supervisor.ensure(world.place)
        orphan = int(await ask(link, "orphan"))
        pid = world.store.processes[0][0]

        os.kill(pid, signal.SIGSTOP)
        with trio.fail_after(10):
            await world.heard.wait()

        assert "no sign of life for 1 s" in world.lost[0][2]
        assert read_stat(pid) is None
        assert read_stat(orphan) is None
        assert (await world.supervisor.ensure(world.place)) is not link


async def test_a_worker_whose_loop_stands_still_is_lost_too(short_path: Path) -> None:
    async with running(short_path, limits=replace(QUICK, beat_s=1)) as world:
        link = await world.supervisor.ensure(world.place)

        with pytest.raises(LinkLost, match="no sign of life"):
            await ask(link, "freeze")


async def test_a_worker_that_beats_is_left_alone(short_path: Path) -> None:
    async with running(short_path, limits=replace(QUICK, beat_s=1.5)) as world:
        link = await world.supervisor.ensure(world.place)

        with trio.move_on_after(3.2):  # more than two limits; beats come every 0.2 s
            await link.closed.wait()

        assert not link.closed.is_set()


async def test_calls_of_a_worker_come_in_order_and_are_answered(short_path: Path) -> None:
    async with running(short_path) as world:
        link = await world.supervisor.ensure(world.place)

        assert await ask(link, "pages 200") == "200"

        assert [json.loads(call)["afterSequence"] for call in world.calls] == list(range(200))


async def test_an_error_of_the_worker_arrives_as_its_class(short_path: Path) -> None:
    async with running(short_path) as world:
        link = await world.supervisor.ensure(world.place)

        with pytest.raises(NotFound, match="nothing is called dance"):
            await ask(link, "dance")


async def test_a_row_that_cannot_be_written_starts_no_worker(short_path: Path) -> None:
    class Full(MemoryGenerations):
        async def create(self, *_: object) -> None:
            raise StorageFull("peen.db", "the disk is full")

    async with running(short_path) as world:
        world.store.__class__ = Full

        with pytest.raises(WorkerFailed, match=r"peen\.db: the disk is full"):
            await world.supervisor.ensure(world.place)

        assert world.space.nanny_pid is None  # nothing was launched


async def test_stop_all_goes_on_when_one_stop_cannot_be_recorded(short_path: Path) -> None:
    class Full(MemoryGenerations):
        async def stopping(self, generation_id: str, /) -> None:
            if generation_id == next(iter(self.rows)):
                raise StorageFull("peen.db", "the disk is full")
            await super().stopping(generation_id)

    async with running(short_path) as world:
        world.store.__class__ = Full
        await world.supervisor.ensure(world.place)
        await world.supervisor.ensure(replace(world.place, session_id="another"))

        await world.supervisor.stop_all("Peen stops")

        first, second = world.store.rows.values()
        assert first[-2] == "failed"  # not recorded as stopping, but ended and recorded
        assert second[-2:] == ["stopped", "Peen stops"]
        assert [read_stat(pid) for pid, _ in world.store.processes] == [None, None]
        with pytest.raises(WorkerFailed, match="Peen is stopping"):
            await world.supervisor.ensure(world.place)


async def test_an_end_that_the_disk_refuses_is_recorded_later_and_only_then_another_worker_starts(
    short_path: Path,
) -> None:
    class Failing(MemoryGenerations):
        refused: ClassVar[list[str]] = []

        async def ended(self, generation_id: str, state: str, detail: str, exit_code: int | None, /) -> None:
            if not self.refused:
                self.refused.append(generation_id)
                raise StorageFailed("peen.db", "an I/O error")
            await super().ended(generation_id, state, detail, exit_code)

        async def create(self, *given: str) -> None:  # type: ignore[override]
            assert all(row[-2] == "failed" for row in self.rows.values())
            await super().create(*given)  # type: ignore[arg-type]

    async with running(short_path) as world:
        world.store.__class__ = Failing
        link = await world.supervisor.ensure(world.place)

        await world.supervisor.give_up(world.place.session_id, "it was told to")

        first = next(iter(world.store.rows))
        assert Failing.refused == [first]
        assert world.store.rows[first][-2:] == ["failed", "it was told to"]
        assert await world.supervisor.ensure(world.place) is not link


async def test_a_lost_fork_server_takes_its_workers_and_their_commands_with_it(short_path: Path) -> None:
    async with running(short_path) as world:
        link = await world.supervisor.ensure(world.place)
        orphans = [int(await ask(link, "orphan")), int(await ask(link, "orphan bare"))]
        pid = world.store.processes[0][0]
        nanny = world.space.nanny_pid
        assert nanny is not None

        os.kill(nanny, signal.SIGKILL)
        with trio.fail_after(10):
            await world.heard.wait()
        for process in (pid, *orphans):
            await gone(process, within_s=0.1)
        again = await world.supervisor.ensure(world.place)

        assert await ask(again, "say hello") == "said"
        assert world.space.nanny_pid not in (None, nanny)


async def test_when_the_controller_is_killed_nothing_stays_alive(short_path: Path) -> None:
    with start_controller(short_path) as controller:
        assert controller.stdout is not None
        pids = json.loads(await trio.to_thread.run_sync(controller.stdout.readline))
        assert len(pids) == 5  # fork server, spare, worker, two commands
        assert all(read_stat(pid) for pid in pids)

        controller.kill()

        with trio.fail_after(5):
            for pid in pids:
                await gone(pid, within_s=5)


async def test_what_is_left_when_controller_and_fork_server_are_killed_ends_too(short_path: Path) -> None:
    with start_controller(short_path) as controller:
        assert controller.stdout is not None
        pids = json.loads(await trio.to_thread.run_sync(controller.stdout.readline))

        os.kill(pids[0], signal.SIGKILL)  # the fork server comes first
        controller.kill()
        await trio.to_thread.run_sync(sweep, f"killed-{controller.pid}")

        for pid in pids:
            await gone(pid, within_s=5)


def start_controller(short_path: Path) -> subprocess.Popen[bytes]:
    program = Path(__file__).with_name("space_controller.py")
    environment = {**os.environ, "PYTHONPATH": str(Path(peen.__file__).parent.parent)}
    return subprocess.Popen([sys.executable, str(program), str(short_path)], env=environment, stdout=subprocess.PIPE)


async def test_secrets_stay_where_they_belong(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PEEN_API_TOKEN", "token-of-the-api")
    async with running(short_path) as world:
        link = await world.supervisor.ensure(world.place)
        pid = world.store.processes[0][0]
        names = json.loads(await ask(link, "environ"))

        worlds = json.dumps(names).encode() + shown_by_proc(pid)

        assert b"PEEN_API_TOKEN" not in worlds
        assert b"token-of-the-api" not in worlds
        assert names["SOME_KEY"] == "allowed"
        # The credential is any 43 characters that hash to what was stored: none of the shown strings does.
        words = {word for word in worlds.replace(b"=", b"\0").replace(b'"', b"\0").split(b"\0") if word}
        assert world.store.digests[0] not in {hashlib.sha256(word).digest() for word in words}


def shown_by_proc(pid: int) -> bytes:
    return Path(f"/proc/{pid}/environ").read_bytes() + Path(f"/proc/{pid}/cmdline").read_bytes()


async def test_a_worker_starts_in_its_workspace_with_nothing_but_what_it_needs(short_path: Path) -> None:
    async with running(short_path, spares=1) as world:
        link = await world.supervisor.ensure(world.place)

        directory, leads_session, fds = json.loads(await ask(link, "place"))

        assert directory == world.place.workspace
        assert leads_session
        targets = len(fds)
        assert targets <= 12  # 0 to 2, the loop's own, the link, and the listing itself
        assert json.loads(await ask(link, "environ"))["_PEEN_SPACE"].endswith(next(iter(world.store.rows)))


# --- who may connect ------------------------------------------------------------------------------------------------


def hello(generation_id: str, session_id: str, credential: str, *, protocol: int = 1) -> bytes:
    return encode(
        Hello(
            protocol=protocol, session_id=session_id, generation_id=generation_id, credential=credential,
            agent_space="control", pid=1,
        )
    )  # fmt: skip


async def answer_to(path: Path, data: bytes) -> Result | None:
    """What the socket says to `data`; None if it only closes."""
    stream = await trio.open_unix_socket(str(path))
    async with stream:
        await stream.send_all(data)
        frames = await FrameStream(stream).receive()
    if not frames:
        return None
    result = decode_from_controller(frames[0])
    assert isinstance(result, Result)
    return result


def framed(payload: bytes) -> bytes:
    return HEADER.pack(len(payload)) + payload


async def test_a_stranger_is_refused_and_the_worker_goes_on(short_path: Path) -> None:
    async with running(short_path) as world:
        link = await world.supervisor.ensure(world.place)
        path = short_path / "s" / world.place.session_id / "worker.sock"
        generation = next(iter(world.store.rows))
        assert path.stat().st_mode & 0o777 == 0o600
        assert path.parent.stat().st_mode & 0o777 == 0o700

        wrong = await answer_to(path, framed(hello(generation, world.place.session_id, "guess")))
        garbage = await answer_to(path, framed(b"{nonsense"))
        too_long = await answer_to(path, HEADER.pack(64 * 1024 + 1))
        early = await answer_to(path, framed(encode(Result(id=1))))

        for refusal in (wrong, garbage, early):
            assert refusal is not None
            assert refusal.error is not None
            assert refusal.error.code == "PERMISSION_DENIED"
        assert too_long is None
        assert await ask(link, "say still here") == "said"


async def test_who_says_nothing_is_refused_after_the_limit(short_path: Path) -> None:
    async with running(short_path, limits=replace(QUICK, hello_s=0.2)) as world:
        await world.supervisor.ensure(world.place)
        path = short_path / "s" / world.place.session_id / "worker.sock"

        refusal = await answer_to(path, HEADER.pack(10) + b"half")

        assert refusal is not None
        assert refusal.error is not None
        assert "no hello within 0.2 s" in refusal.error.message


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
@pytest.mark.parametrize("opened", [False, True], ids=["modes as they are", "modes opened wide"])
async def test_another_user_cannot_connect(short_path: Path, opened: bool) -> None:
    async with running(short_path) as world:
        await world.supervisor.ensure(world.place)
        path = world.root / "s" / world.place.session_id / "worker.sock"
        if opened:
            path.chmod(0o666)
            for directory in (path.parent, path.parent.parent, world.root):
                directory.chmod(0o755)

        outcome = await trio.to_thread.run_sync(connect_as_nobody, path)

        assert outcome == ("refused: user 65534 may not connect" if opened else "PermissionError")


def connect_as_nobody(path: Path) -> str:
    code = (
        "import json, os, socket, sys; os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "s = socket.socket(socket.AF_UNIX)\n"
        "try: s.connect(sys.argv[1])\n"
        "except PermissionError: print('PermissionError'); sys.exit()\n"
        "print('refused: ' + json.loads(s.recv(65536)[4:])['error']['message'])"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    return done.stdout.strip()


async def test_a_stale_socket_file_is_replaced(short_path: Path) -> None:
    async with running(short_path) as world:
        directory = short_path / "s" / world.place.session_id
        directory.mkdir(parents=True)
        with socket.socket(socket.AF_UNIX) as stale:
            stale.bind(str(directory / "worker.sock"))

        link = await world.supervisor.ensure(world.place)

        assert await ask(link, "say hello") == "said"


async def test_a_socket_directory_that_is_a_link_elsewhere_is_refused(short_path: Path) -> None:
    (short_path / "s").mkdir()
    async with running(short_path) as world:
        (short_path / "s" / world.place.session_id).symlink_to("/tmp")

        with pytest.raises(WorkerFailed, match="is not a directory of this user"):
            await world.supervisor.ensure(world.place)
