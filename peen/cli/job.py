"""`peen job`: the commands of a session, what they print, and ending one."""

from __future__ import annotations

import time
from base64 import b64decode
from typing import Final, cast

import click
import msgspec

from peen.cli.client import Client
from peen.cli.ends import REFUSED, CommandEnds, printable, say
from peen.cli.pausedwork import refusals
from peen.cli.reach import check_session_id, running_controller
from peen.cli.startup import load
from peen.cli.streams import echo, put
from peen.duration import format_duration_ms
from peen.entropy import SystemEntropy
from peen.ids import parse_uuid4
from peen.wire.job import AskSignal, Job, JobOutputLine, JobOutputPage, JobPage, SignalAnswer
from peen.wire.jobcalls import JobSignalName
from peen.wire.rest import encode

LOOK_S: Final = 0.3
"""How long `-f` waits before it asks again."""
_PAGE_LINES: Final = 2000
_PAGE_JOBS: Final = 200
_PATH: Final = "/api/v1/session/jobs"

_session = click.argument("session_id", metavar="SESSION")
_job = click.argument("job_id", metavar="JOB")


@click.group()
def job() -> None:
    """Commands of a session. These commands need a running controller."""


@job.command("list")
@_session
@click.option("--state", type=click.Choice(["running", "exited", "signalled", "failed", "interrupted"]))
@click.option("--json", "as_json", is_flag=True, help="Print the API's JSON.")
def list_(session_id: str, state: str | None, as_json: bool) -> None:
    """List the last commands of a session, the newest last."""
    check_session_id(session_id)
    query: dict[str, str | int] = {"limit": _PAGE_JOBS} | ({} if state is None else {"state": state})
    with refusals(session_id):
        answer = _client().get(_PATH, session_id=session_id, query=query)
    if as_json:
        echo(answer)
        return
    for found in reversed(msgspec.json.decode(answer, type=JobPage).jobs):
        echo(job_line(found))


@job.command()
@_session
@_job
@click.option("-f", "--follow", is_flag=True, help="Go on until the job has ended.")
@click.option("--stream", type=click.Choice(["stdout", "stderr", "both"]), default="both", show_default=True)
def output(session_id: str, job_id: str, follow: bool, stream: str) -> None:
    """Print what a job has printed, byte for byte: its standard output and its standard error each to the same.

    Says so on standard error if some of it is not stored.
    """
    check_session_id(session_id)
    _check_job_id(job_id, session_id)
    client, cursor = _client(), 0
    while True:
        query: dict[str, str | int] = {"cursor": cursor, "limit": _PAGE_LINES, "stream": stream}
        with refusals(session_id):
            answer = client.get(f"{_PATH}/{job_id}/output", session_id=session_id, query=query)
        read = msgspec.json.decode(answer, type=JobOutputPage)
        put(_bytes_of(read, "stdout"), _bytes_of(read, "stderr"))
        cursor = read.next_cursor
        if not read.has_more:
            if not follow or read.state != "running":
                break
            time.sleep(LOOK_S)  # no deadline: a job may run for days, and Ctrl-C ends the wait
    if read.output_missing:
        say(f"{read.output_missing}; {read.unstored_bytes} bytes are missing")


@job.command()
@_session
@_job
@click.argument("signal", type=click.Choice(["stop", "kill"]), default="stop")
def signal(session_id: str, job_id: str, signal: str) -> None:
    """End a job with everything that it started: stop asks, and insists after 10 s; kill does not ask."""
    check_session_id(session_id)
    _check_job_id(job_id, session_id)
    with refusals(session_id):
        told = send_signal(_client(), session_id, job_id, cast(JobSignalName, signal))
    echo(f"{job_id}\tsignalled={str(told.signalled).lower()}\t{told.state}")


def send_signal(client: Client, session_id: str, job_id: str, signal: JobSignalName) -> SignalAnswer:
    """Raises: CallRefused."""
    answer = client.post(f"{_PATH}/{job_id}/signal", encode(AskSignal(signal=signal)), session_id=session_id)
    return msgspec.json.decode(answer, type=SignalAnswer)


def running_jobs(client: Client, session_id: str) -> list[Job]:
    """Newest first. Raises: CallRefused."""
    query: dict[str, str | int] = {"state": "running", "limit": _PAGE_JOBS}
    return msgspec.json.decode(client.get(_PATH, session_id=session_id, query=query), type=JobPage).jobs


def job_line(found: Job) -> str:
    """Id, how it is, how long it took, and what it is, with tabs between them."""
    state = f"exited {found.exit_code}" if found.state == "exited" else found.state
    took = format_duration_ms(found.duration_ms)
    command = " ".join(found.command.split())
    return f"{found.job_id}\t{state}\t{took}\t{printable(found.purpose)}\t{printable(command)}"


def printed(line: JobOutputLine) -> bytes:
    """The bytes that the line stands for."""
    content = b64decode(line.content) if line.encoding == "base64" else line.content.encode()
    return content if line.continued else content + b"\n"


def _bytes_of(page: JobOutputPage, stream: str) -> bytes:
    return b"".join(printed(line) for line in page.lines if line.stream == stream)


def _client() -> Client:
    return running_controller(load(), SystemEntropy())


def _check_job_id(text: str, session_id: str) -> None:
    if parse_uuid4(text) is None:
        raise CommandEnds(f"{printable(text)!r} is no job id; peen job list {session_id} shows them", REFUSED)
