"""What `peen exec` is asked, checked before anything starts."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest
from image_kit import IMAGES, PNG

from peen.cli.ends import CommandEnds
from peen.cli.order import MAX_PROMPT_BYTES, Order, absolute, parse_timeout_s, read_images, read_prompt
from peen.wire.client import ClientLimits, decode_client_frame, encode_client_frame

SESSION = "11111111-1111-4111-8111-111111111111"
FRAME = "33333333-3333-4333-8333-333333333333"


def piped(data: bytes) -> io.BytesIO:
    return io.BytesIO(data)


def test_the_argument_is_the_prompt_and_standard_input_is_left_alone() -> None:
    stdin = piped(b"not this")

    assert read_prompt("this", stdin, is_terminal=False) == "this"
    assert stdin.read() == b"not this"


@pytest.mark.parametrize("argument", ["-", None])
def test_a_dash_or_a_pipe_reads_standard_input(argument: str | None) -> None:
    assert read_prompt(argument, piped("zwölf\nlines\n".encode()), is_terminal=False) == "zwölf\nlines"


def test_a_dash_reads_a_terminal_too() -> None:
    assert read_prompt("-", piped(b"typed\n"), is_terminal=True) == "typed"


def test_no_prompt_at_a_terminal_is_refused_instead_of_waiting() -> None:
    with pytest.raises(CommandEnds, match="there is no prompt") as refused:
        read_prompt(None, piped(b"never read"), is_terminal=True)
    assert refused.value.code == 2


@pytest.mark.parametrize(("argument", "data"), [("", b""), (" \n", b""), ("-", b""), (None, b"\n\n")])
def test_an_empty_prompt_is_refused(argument: str | None, data: bytes) -> None:
    with pytest.raises(CommandEnds, match="empty") as refused:
        read_prompt(argument, piped(data), is_terminal=False)
    assert refused.value.code == 2


def test_bytes_that_are_no_text_are_refused() -> None:
    with pytest.raises(CommandEnds, match="UTF-8"):
        read_prompt("-", piped(b"\xff\xfe"), is_terminal=False)
    with pytest.raises(CommandEnds, match="UTF-8"):
        read_prompt(os.fsdecode(b"\xff"), None, is_terminal=True)


def test_standard_input_is_not_read_without_end() -> None:
    with pytest.raises(CommandEnds, match="larger than"):
        read_prompt("-", piped(b"x" * (MAX_PROMPT_BYTES + 1)), is_terminal=False)


def test_time_limits_are_go_durations_above_zero() -> None:
    assert parse_timeout_s(None) is None
    assert parse_timeout_s("1m30s") == 90.0
    for text in ("5", "0s", "-1s", "soon"):
        with pytest.raises(CommandEnds) as refused:
            parse_timeout_s(text)
        assert refused.value.code == 2


def test_a_directory_is_named_from_here() -> None:
    assert absolute("/a/../b/") == "/b"
    assert absolute(".") == os.getcwd()


@pytest.mark.parametrize("model", [None, "up/model"])
def test_an_order_is_a_message_that_the_controller_reads_the_same(model: str | None) -> None:
    order = Order(frame_id=FRAME, prompt='say "hé"\n', workspace="/w", model=model, deadline_s=None)
    message = order.message(SESSION)

    assert decode_client_frame(encode_client_frame(message, 5), ClientLimits()) == message
    assert (message.id, message.session_id, message.message, message.model) == (FRAME, SESSION, 'say "hé"\n', model)


def test_images_are_sent_as_they_are(tmp_path: Path) -> None:
    paths = []
    for number, data in enumerate(IMAGES.values()):
        path = tmp_path / f"{number}.bin"  # the bytes say what it is, not the name
        path.write_bytes(data)
        paths.append(str(path))

    images = read_images(paths, max_images=4, max_bytes=1000)

    order = Order(frame_id=FRAME, prompt="look", workspace="/w", model=None, deadline_s=None, images=images)
    message = order.message(SESSION)
    assert decode_client_frame(encode_client_frame(message, 5), ClientLimits()) == message
    assert [(image.media_type, image.data) for image in message.images] == list(IMAGES.items())


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("a.png", b"no image", "is no image in the format PNG, JPEG, GIF or WebP"),
        ("a.png", b"", "is no image in the format"),
        ("a.png", PNG[:40], "is a broken image/png: it is cut off"),
        ("a.png", PNG + bytes(31), "is larger than 100 bytes (PEEN_MAX_IMAGE_BYTES)"),
        ("absent.png", None, "No such file or directory"),
    ],
)
def test_a_file_that_cannot_be_sent_is_named(tmp_path: Path, name: str, content: bytes | None, problem: str) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(CommandEnds) as refused:
        read_images([str(path)], max_images=4, max_bytes=100)

    assert refused.value.code == 2
    assert f"--image {path}" in str(refused.value)
    assert problem in str(refused.value)


def test_too_many_images_are_refused_before_they_are_read() -> None:
    with pytest.raises(CommandEnds, match="at most 4 images"):
        read_images(["/nowhere"] * 5, max_images=4, max_bytes=100)
