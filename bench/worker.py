"""How long a worker takes to be ready, and what one costs in memory: `python -m bench.worker [--quick] [--json]`."""

from __future__ import annotations

import os
import socket
import sys
import tempfile
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Final, Literal

import structlog
import trio
from msgspec import Raw

from bench.common import median, parser, report, table
from peen.entropy import SystemEntropy
from peen.space.control import ControlSpace
from peen.space.supervise import Placement, Supervisor
from peen.wire.launch import UpstreamConfig, WorkerSettings
from peen.wire.worker import WireError
from peen.worker.link import CallHandler, Reply

RUNS: Final = 20
QUICK_RUNS: Final = 5
QUIET_S: Final = 0.5  # for the spare to be forked, and for a worker to have done what it does first


class NoStore:
    """Records nothing but pids, so that only processes are measured."""

    def __init__(self) -> None:
        self.pids: list[int] = []

    async def create(self, *_: object) -> None:
        pass

    async def starting(self, generation_id: str, pid: int, start_time: int, /) -> None:
        self.pids.append(pid)

    async def ready(self, generation_id: str, /) -> None:
        pass

    async def stopping(self, generation_id: str, /) -> None:
        pass

    async def ended(
        self, generation_id: str, state: Literal["stopped", "failed"], detail: str, exit_code: int | None, /
    ) -> None:
        pass


async def measure(root: Path, *, spares: int, runs: int) -> tuple[list[float], float]:
    """Milliseconds from the wish for a worker to its hello, and the PSS in MiB of the last one when idle."""
    store, space = NoStore(), control_space(spares)
    supervisor = Supervisor(
        space,
        store,
        socket_root=root / "s",
        config_directory=root,
        state_id=f"bench-{os.getpid()}",
        settings=WorkerSettings(upstreams=[UpstreamConfig(name="scripted", type="scripted")], default_model="x"),
        entropy=SystemEntropy(),
        calls=no_calls,
        on_lost=raise_loss,
    )
    taken: list[float] = []
    async with trio.open_nursery() as nursery:
        await nursery.start(space.run)
        await nursery.start(supervisor.run)
        for number in range(runs + 1):
            await trio.sleep(QUIET_S)
            began = time.perf_counter()
            await supervisor.ensure(Placement(f"session-{number}", str(root), "control"))
            taken.append((time.perf_counter() - began) * 1000)
            if number < runs:
                await supervisor.stop(f"session-{number}", "measured")
        await trio.sleep(QUIET_S)
        pss = pss_mib(store.pids[-1])
        await supervisor.stop_all("measured")
        nursery.cancel_scope.cancel()
    return taken[1:], pss  # the first one waited for the fork server's imports


def control_space(spares: int) -> ControlSpace:
    environment = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    return ControlSpace(state_id=f"bench-{os.getpid()}", environment=environment, spares=spares)


def no_calls(session_id: str, generation_id: str) -> CallHandler:
    def refuse(method: str, payload: Raw, reply: Reply) -> None:
        reply(WireError(code="INTERNAL_SERVER_ERROR", message=f"{method} is not measured"))

    return refuse


async def raise_loss(session_id: str, generation_id: str, reason: str) -> None:
    raise RuntimeError(f"a worker was lost: {reason}")


def pss_mib(pid: int) -> float:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"/proc/{pid}/smaps_rollup does not tell the PSS")


def bare_fork_ms(root: Path) -> float:
    """Milliseconds for a forked process to connect to a Unix socket and send a byte: no worker can be faster."""
    path = str(root / "floor.sock")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        began = time.perf_counter()
        pid = os.fork()
        if pid == 0:
            try:
                with socket.socket(socket.AF_UNIX) as client:
                    client.connect(path)
                    client.send(b"x")
            finally:
                os._exit(0)
        with listener.accept()[0] as connection:
            connection.recv(1)
        taken = (time.perf_counter() - began) * 1000
        os.waitpid(pid, 0)
    os.unlink(path)
    return taken


def main() -> None:
    arguments = parser(__doc__ or "").parse_args()
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr), wrapper_class=only_errors())
    runs = QUICK_RUNS if arguments.quick else RUNS
    with tempfile.TemporaryDirectory(prefix="peen") as directory:
        root = Path(directory)
        floor = median([bare_fork_ms(root) for _ in range(runs)])
        forked, pss = trio.run(partial(measure, root, spares=0, runs=runs))
        waiting, _ = trio.run(partial(measure, root, spares=1, runs=runs))
    data: Mapping[str, float] = {
        "ready_ms_forked": median(forked),
        "ready_ms_waiting": median(waiting),
        "pss_mib": pss,
        "floor_ms": floor,
    }
    rows = [
        ("worker ready, forked (ms)", data["ready_ms_forked"], min(forked), max(forked)),
        ("worker ready, waiting (ms)", data["ready_ms_waiting"], min(waiting), max(waiting)),
        ("floor: fork, connect, one byte (ms)", floor, "", ""),
        ("PSS of an idle worker (MiB)", pss, "", ""),
    ]
    report(arguments, data, table(["", "median", "least", "most"], rows))


def only_errors() -> type[structlog.typing.BindableLogger]:
    return structlog.make_filtering_bound_logger("error")


if __name__ == "__main__":
    main()
