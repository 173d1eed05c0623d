"""What `peen exec` was asked to do, checked."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import BinaryIO, Final, Literal

from peen.cli.ends import REFUSED, CommandEnds
from peen.duration import parse_duration_ms
from peen.wire.client import Effort, MessageSend, SentImage

Form = Literal["text", "json", "stream-json"]
"""What standard output gets: the answer alone, one JSON document, or every frame on a line."""

MAX_PROMPT_BYTES: Final = 4 * 1024 * 1024  # the most that PEEN_MAX_MESSAGE_BYTES can allow


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """One message for the session of one workspace.

    `frame_id` stays the same however often the message is sent, so that it starts one turn only. `workspace` is
    absolute; `deadline_s` is on the monotonic clock, None for no limit.
    """

    frame_id: str
    prompt: str
    workspace: str
    model: str | None
    effort: Effort | None = None
    deadline_s: float | None
    images: tuple[SentImage, ...] = ()

    def message(self, session_id: str) -> MessageSend:
        return MessageSend(
            id=self.frame_id,
            session_id=session_id,
            message=self.prompt,
            model=self.model,
            reasoning_effort=self.effort,
            images=self.images,
        )


def read_images(paths: Sequence[str], *, max_images: int, max_bytes: int) -> tuple[SentImage, ...]:
    """The images to send. Raises: CommandEnds (exit 2) naming the file that cannot be sent, and why."""
    if len(paths) > max_images:
        raise CommandEnds(
            f"--image: at most {max_images} images go with a message (PEEN_MAX_IMAGES_PER_MESSAGE)", REFUSED
        )
    return tuple(_read_image(path, max_bytes) for path in paths)


def _read_image(path: str, max_bytes: int) -> SentImage:
    try:
        with open(path, "rb") as file:
            data = file.read(max_bytes + 1)
        if len(data) > max_bytes:
            raise ValueError(f"is larger than {max_bytes} bytes (PEEN_MAX_IMAGE_BYTES)")
        return SentImage.of(data)
    except (OSError, ValueError) as problem:
        why = problem.strerror if isinstance(problem, OSError) else problem
        raise CommandEnds(f"--image {path}: {why}", REFUSED) from problem


def read_prompt(argument: str | None, stdin: BinaryIO | None, *, is_terminal: bool) -> str:
    """The text to send: the argument, or standard input for `-` or where there is no argument but a pipe.

    Raises: CommandEnds (exit 2) if there is nothing to send, or nothing that can be sent.
    """
    if argument is not None and argument != "-":
        text = _sound(argument)
    elif stdin is None or (argument is None and is_terminal):
        raise CommandEnds('there is no prompt; write it behind `peen exec`, or pipe it in: peen exec "list"', REFUSED)
    else:
        data = stdin.read(MAX_PROMPT_BYTES + 1)
        if len(data) > MAX_PROMPT_BYTES:
            raise CommandEnds(f"the prompt on standard input is larger than {MAX_PROMPT_BYTES} bytes", REFUSED)
        text = _sound(data.decode("utf-8", "surrogateescape")).rstrip("\n")
    if not text.strip():
        raise CommandEnds("the prompt is empty", REFUSED)
    return text


def absolute(directory: str) -> str:
    """The directory as seen from here; links stay, since the controller knows the one name of every workspace."""
    return os.path.abspath(_sound(directory))


def parse_timeout_s(text: str | None) -> float | None:
    """Seconds of a Go duration such as `90s`. Raises: CommandEnds (exit 2)."""
    if text is None:
        return None
    try:
        timeout_ms = parse_duration_ms(text)
    except ValueError as error:
        raise CommandEnds(f"--timeout: {error}", REFUSED) from None
    if timeout_ms <= 0:
        raise CommandEnds("--timeout: must be longer than zero", REFUSED)
    return timeout_ms / 1000


def _sound(text: str) -> str:
    # Python keeps bytes that are no UTF-8 as lone surrogates; no JSON can carry those.
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise CommandEnds("prompts, models and directories must be valid UTF-8", REFUSED)
    return text
