"""A worker that does what its commands say, for tests of what surrounds workers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import trio

from peen.errors import NotFound, WorkerFailed
from peen.wire.launch import LaunchDocument
from peen.wire.turncalls import HistoryPage, HistoryRows
from peen.wire.worker import RunTurn, ShutDown, Shutdown, TurnEnded
from peen.wire.workerstruct import WorkerStruct
from peen.worker.link import ControllerLink, connect

ORPHAN = "setsid sleep 1000 >/dev/null 2>&1 & echo $!"


def worker_main(document: LaunchDocument) -> int:
    match document.settings.default_model:
        case "leaves":
            print("no room here", file=sys.stderr)
            return 5
        case "silent":
            signal.pause()
        case "stubborn":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
    return trio.run(_run, document)


async def _run(document: LaunchDocument) -> int:
    async with trio.open_nursery() as nursery:
        worker = Standin(document, nursery)
        try:
            worker.link = await connect(document, worker.obey, beat_s=0.2)
        except WorkerFailed as refused:
            print(refused)
            return 2
        await worker.link.run(nursery)
        if document.settings.default_model == "stubborn":
            await trio.sleep_forever()
        nursery.cancel_scope.cancel()
    return 0


class Standin:
    link: ControllerLink

    def __init__(self, document: LaunchDocument, nursery: trio.Nursery) -> None:
        self._document, self._nursery = document, nursery

    async def obey(self, method: str, request: WorkerStruct) -> WorkerStruct:
        match request:
            case Shutdown() if self._document.settings.default_model == "stubborn":
                await trio.sleep_forever()
            case Shutdown():
                return ShutDown()
            case RunTurn(message=message):
                return TurnEnded(state=await self._do(*message.split(" ", 1)))
        raise AssertionError(method)

    async def _do(self, verb: str, rest: str = "") -> str:
        match verb:
            case "environ":
                return json.dumps(dict(os.environ))
            case "place":
                return json.dumps(
                    [os.getcwd(), os.getsid(0) == os.getpid(), sorted(map(int, os.listdir("/proc/self/fd")))]
                )
            case "orphan":  # with no environment to know it by, if that is asked for
                return _shell(ORPHAN, {"PATH": os.environ["PATH"]} if rest == "bare" else dict(os.environ))
            case "exit":
                os._exit(int(rest))
            case "freeze":
                time.sleep(1000)  # noqa: ASYNC251  the loop has to stand still
            case "say":
                print(rest)
                sys.stdout.flush()
                return "said"
            case "pages":
                answers = [
                    self.link.call_soon(HistoryPage(after_sequence=n, up_to_sequence=n), HistoryRows)
                    for n in range(int(rest))
                ]
                return str(len([await answer for answer in answers]))
            case "wait":
                await trio.sleep_forever()
        raise NotFound(f"nothing is called {verb}")


def _shell(command: str, environment: dict[str, str]) -> str:
    return subprocess.run(["/bin/sh", "-c", command], env=environment, capture_output=True, text=True).stdout.strip()
