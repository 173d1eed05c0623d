"""OpenAI's own list of models: everything that it sells, in no order. What of it can chat, and what to try first."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from peen.model.chatwire import ListedModel

_CANNOT_CHAT: Final = re.compile(
    r"audio|babbage|codex|computer-use|dall-e|davinci|deep-research|embedding|image|instruct|moderation|-pro\b|realtime"
    r"|search|sora|speech|transcribe|tts|whisper"
)
_SMALLER: Final = re.compile(r"mini|nano|preview|-chat")
_DATED: Final = re.compile(r"-\d{4}(-\d\d-\d\d)?$")


def by_preference(models: Iterable[ListedModel]) -> list[ListedModel]:
    """Models that take chat completions: the newest large `gpt-` first, then smaller and dated ones, then the rest."""

    def rank(model: ListedModel) -> tuple[bool, bool, bool, float]:
        name = model.id
        return (
            not name.startswith("gpt-"),
            bool(_SMALLER.search(name)),
            bool(_DATED.search(name)),
            -(model.created or 0),
        )

    return sorted((model for model in models if not _CANNOT_CHAT.search(model.id)), key=rank)
