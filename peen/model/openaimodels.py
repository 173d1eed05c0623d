"""OpenAI's own list of models: everything that it sells, in no order. What of it can chat, and what to try first."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from peen.model.chatwire import ListedModel

_CANNOT_CHAT: Final = re.compile(
    r"audio|babbage|computer-use|dall-e|davinci|deep-research|embedding|image|instruct|moderation|realtime|search|sora"
    r"|speech|transcribe|tts|whisper"
)
_RESPONSES_ONLY: Final = re.compile(r"codex|-pro\b")
_SMALLER: Final = re.compile(r"mini|nano|preview|-chat|codex|-pro\b")
_DATED: Final = re.compile(r"-\d{4}(-\d\d-\d\d)?$")


def by_preference(models: Iterable[ListedModel], *, responses: bool = False) -> list[ListedModel]:
    """Models that take chat completions, or the Responses API if `responses`.

    The newest large `gpt-` first, then smaller, special and dated ones, then the rest.
    """

    def rank(model: ListedModel) -> tuple[bool, bool, bool, float]:
        name = model.id
        return (
            not name.startswith("gpt-"),
            bool(_SMALLER.search(name)),
            bool(_DATED.search(name)),
            -(model.created or 0),
        )

    able = (model for model in models if not _CANNOT_CHAT.search(model.id))
    return sorted((model for model in able if responses or not _RESPONSES_ONLY.search(model.id)), key=rank)
