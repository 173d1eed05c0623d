"""Which turns may have images in front of their model."""

from __future__ import annotations

import msgspec

from peen.context.pictures import with_notes
from peen.errors import ValidationFailed
from peen.ids import SessionNo
from peen.session.household import Household
from peen.store import compactions, images, messages
from peen.store.database import Reader
from peen.wire.client import MessageSend


def check_images(house: Household, session_no: SessionNo, model: str | None, *, sent: int) -> None:
    """Refuse a message with `sent` images, or to a session that would show some, where `model` cannot be shown any.

    `model` is None for the default. Raises: ValidationFailed.
    """
    name = model or house.default_model
    if sent:
        if not house.takes_images(name):
            raise ValidationFailed(f"data.images: the model {name} takes no images; choose another, or send text alone")
    elif not house.takes_images(name) and _shows_images(house.database.reader, session_no, name):
        raise ValidationFailed(
            f"data.model: this session holds images, and the model {name} takes none; choose one that does"
        )


def _shows_images(db: Reader, session_no: SessionNo, model: str) -> bool:
    """Whether a new turn of this model would be sent an image: one that is not summarized, nor refused for it."""
    summary = compactions.head(db, session_no)
    held = messages.with_images(db, session_no, after=0 if summary is None else summary.to_sequence)
    return any(row.message.images for row in with_notes(held, images.refused(db, session_no, model)))


def without_bytes(message: MessageSend) -> MessageSend:
    """The message as it is remembered while its turn runs: its images are stored."""
    return msgspec.structs.replace(message, images=()) if message.images else message
