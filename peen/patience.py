"""How long the end of a command may take, and how long others wait for it. Who waits always waits longer.

A worker ends its commands within `COMMAND_END_S`, whatever they do. Were the controller less patient than that, one
process that nobody may signal would cost the session its worker, and with it every job that has nothing to do with it.
"""

from __future__ import annotations

from typing import Final

TERM_GRACE_S: Final = 3.0
"""What a process gets to end in its own way."""
KILL_GRACE_S: Final = 0.8
"""What outlives SIGKILL for so long during a Stop hangs in the kernel, and is given up."""
RECORD_S: Final = 0.2
"""After that a call returns, even if the end of its command is not stored yet; it is stored all the same."""
COMMAND_END_S: Final = TERM_GRACE_S + KILL_GRACE_S + RECORD_S
"""The longest that a Stop, or the end of a worker, is busy with commands; of several at once too."""
STOP_QUIET_S: Final = COMMAND_END_S + 0.6
"""After a Stop a worker must have ended everything within this; then it is killed."""
STOP_S: Final = 5.0
"""What is promised of a Stop. What is left of it is for killing the worker."""
CLEANUP_S: Final = 2 * COMMAND_END_S
"""What turns and jobs may take to end when their worker stops."""
