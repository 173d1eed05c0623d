"""What the machine gives: open files, programs, a clock; and what it gives away."""

from __future__ import annotations

import os
import resource
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from peen.cli.doctor.finding import Finding, fail, ok, warn
from peen.cli.doctor.running import can_connect
from peen.entropy import Entropy
from peen.settings.environment import open_files_warning
from peen.tool.base import ToolError
from peen.tool.search_text import ripgrep_path

RUN_S: Final = 10.0
CONNECT_S: Final = 1.0
EARLIEST_MS: Final = 1_750_000_000_000
"""June 2025: no release is older."""
_SKEW_MS: Final = 60_000


def look_at_machine(environ: Mapping[str, str], home: Path, entropy: Entropy) -> Iterator[Finding]:
    """Everything that does not depend on settings."""
    yield look_at_open_files(resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    yield look_at_ripgrep(ripgrep_path)
    yield look_at_clock(entropy.now_ms())
    yield look_at_user(os.geteuid())
    yield look_at_docker(docker_sockets(environ, home))


def look_at_open_files(hard: int) -> Finding:
    """`hard` is the limit to which a controller raises its own."""
    problem = open_files_warning(hard)
    if problem is not None:
        return warn("open files", problem.partition(" (")[0], mend="ulimit -n, or LimitNOFILE= of the service")
    return ok("open files", "no limit" if hard == resource.RLIM_INFINITY else f"up to {hard}")


def look_at_ripgrep(find: Callable[[], Path]) -> Finding:
    about, mend = "ripgrep", "pip install ripgrep==14.1.0"
    try:
        path = find()
    except ToolError:
        return fail(about, "rg was not found, so searchText cannot work", mend=mend)
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=RUN_S, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        return fail(about, f"{path} does not run: {error}", mend=mend)
    return ok(about, f"{done.stdout.partition(chr(10))[0]} ({path})")


def look_at_clock(now_ms: int) -> Finding:
    if now_ms < EARLIEST_MS:
        return fail("clock", "it stands before this release was made", mend="set it, for instance with timedatectl")
    return ok("clock", "plausible")


def look_at_newest(state_dir: Path, now_ms: int) -> Finding:
    """Whether the clock went back: files of the state directory would come from the future."""
    newest_ms = max((_changed_ms(path) for path in state_dir.glob("*")), default=0)
    if newest_ms > now_ms + _SKEW_MS:
        ahead_s = (newest_ms - now_ms) // 1000
        return warn("clock", f"files in {state_dir} are {ahead_s} s ahead of it", mend="set it, if it went back")
    return ok("clock", f"not behind the files in {state_dir}")


def look_at_user(uid: int) -> Finding:
    if uid == 0:
        return warn("user", "root: commands of agents may do anything", mend="run Peen as a user of its own")
    return ok("user", f"uid {uid}")


def look_at_docker(sockets: Iterable[Path]) -> Finding:
    """Whether a command of an agent, which runs as this user, could give orders to Docker."""
    for path in sockets:
        if can_connect(path, CONNECT_S):
            return warn(
                "Docker", f"{path} can be reached, so commands of agents can do anything on this machine",
                mend="run Peen as a user who may not use Docker",
            )  # fmt: skip
    return ok("Docker", "no socket can be reached")


def docker_sockets(environ: Mapping[str, str], home: Path) -> list[Path]:
    """Where Docker listens usually, each once."""
    given = environ.get("DOCKER_HOST", "")
    runtime = environ.get("XDG_RUNTIME_DIR")
    found = [
        *([Path(given.removeprefix("unix://"))] if given.startswith("unix://") else []),
        Path("/var/run/docker.sock"),
        *([Path(runtime) / "docker.sock"] if runtime else []),
        home / ".docker" / "run" / "docker.sock",
    ]
    return list(dict.fromkeys(found))


def _changed_ms(path: Path) -> int:
    try:
        return path.lstat().st_mtime_ns // 1_000_000
    except OSError:  # it went meanwhile
        return 0
