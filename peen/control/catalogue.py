"""The models that sessions may use; those of a provider that was down are looked for again when a message comes."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import msgspec
import structlog
import trio

from peen.errors import ConfigurationInvalid, TurnCancelled, ValidationFailed
from peen.model.registry import REDISCOVERY_PAUSE_S, Models
from peen.model.stream import ModelInfo
from peen.session.acceptance import known_frame
from peen.session.actor import Household, Link
from peen.session.registry import Sessions
from peen.session.state import Origin
from peen.store import sessions
from peen.wire.client import MessageSend
from peen.wire.worker import ResumeTurn, RunTurn
from peen.wire.workerstruct import WorkerStruct

log = structlog.get_logger(__name__)


class Catalogue:
    """Models that have been discovered, and which of them is the default. `listed` is always what is known now."""

    def __init__(self, models: Models, configured: str | None, *, summarizer: str | None = None) -> None:
        """`summarizer` is the model that writes summaries, if it is not the default one.

        Raises: ConfigurationInvalid if it or the default model does not exist, unless a provider is down that may
        offer it.
        """
        self._models, self._summarizer = models, summarizer
        self.listed: list[ModelInfo] = [*models.list]
        if models.is_missing(configured):
            self._default = configured or ""
            log.warning(
                "the default model is not known yet: messages are refused until its provider answers",
                default_model=configured,
                failures=dict(models.failures),
            )
        else:
            self._default = models.default(configured)[1].name
        if summarizer is not None and not models.is_missing(summarizer):
            try:
                models.resolve(summarizer)
            except ValidationFailed as exc:
                raise ConfigurationInvalid("PEEN_COMPACTION_MODEL", str(exc), example=self.default) from exc

    @property
    def is_settled(self) -> bool:
        """Whether the default was known from the start."""
        return bool(self._default)

    @property
    def default(self) -> str:
        """Name of the default model; empty while there is none."""
        return self._default or next((info.name for info in self.listed), "")

    def windows(self, model: str | None) -> dict[str, int]:
        """The context windows that are published for what a turn of `model` uses: that one, and the summarizer."""
        wanted = {model or self.default, self._summarizer or self.default}
        return {
            info.name: info.context_window_tokens
            for info in self.listed
            if info.name in wanted and info.context_window_tokens is not None
        }

    def is_missing(self, name: str | None) -> bool:
        """Whether a provider must be asked again for the model called `name`, or without a name for the default."""
        return self._models.is_missing(name or self._default or None)

    def check(self, name: str) -> None:
        """Raises: ValidationFailed for a model that no upstream offers."""
        self._models.resolve(name)

    def takes_images(self, name: str) -> bool:
        """Whether a model can be shown an image. One that is not known yet may turn out to be no such model."""
        try:
            return self._models.resolve(name)[1].image_input
        except ValidationFailed:
            return True

    async def find(self, name: str | None) -> str:
        """Name of the model that a message means; where a provider was down that is asked again, within seconds.

        Raises: ValidationFailed naming the provider and what is wrong with it.
        """
        wanted = name or self._default or None
        if self._models.is_missing(wanted):
            await self._models.rediscover()
            self.listed[:] = self._models.list
        if wanted is None and not self.listed:
            raise ValidationFailed(
                f"no model is available: {self._models.nothing()}; "
                f"send the message again in {REDISCOVERY_PAUSE_S:g} s, when the providers are asked again"
            )
        found = wanted or self.default
        self.check(found)
        return found


class ModelledSessions(Sessions):
    """Sessions that get no new message whose model is not to be had."""

    def __init__(self, household: Household, catalogue: Catalogue) -> None:
        super().__init__(household)
        self._catalogue = catalogue
        self._looking: dict[trio.CancelScope, UUID] = {}

    async def submit(self, message: MessageSend, origin: Origin) -> None:
        """As for any sessions; a provider that was down may be asked first.

        Raises: ValidationFailed if the model cannot be used, TurnCancelled if a Stop comes while it is looked for, and
        what any sessions raise; nothing is stored.
        """
        if self._catalogue.is_missing(message.model) and self._is_new(message):
            await self._find(message)
        if self._house.default_model != self._catalogue.default:
            self._house = replace(self._house, default_model=self._catalogue.default)
        await super().submit(message, origin)

    async def stop(self, session_id: str) -> bool:
        """As for any sessions; a message that still waits for its model is refused."""
        waiting = [scope for scope, session in self._looking.items() if session == UUID(session_id)]
        for scope in waiting:
            scope.cancel()
        return await super().stop(session_id) or bool(waiting)

    async def _find(self, message: MessageSend) -> None:
        with trio.CancelScope() as scope:
            self._looking[scope] = UUID(message.session_id)
            try:
                await self._catalogue.find(message.model)
            finally:
                del self._looking[scope]
        if scope.cancel_called:
            raise TurnCancelled("a Stop came while the providers were asked for this model; nothing was stored")

    def _is_new(self, message: MessageSend) -> bool:
        reader = self._house.database.reader
        session = sessions.by_id(reader, UUID(message.session_id).bytes)
        return session is not None and known_frame(reader, session.no, message.id) is None


class NamingLink:
    """A worker that is told about models with every turn: what their windows are, and which is the default if none was
    known when its settings were made."""

    def __init__(self, link: Link, catalogue: Catalogue) -> None:
        self._link, self._catalogue = link, catalogue

    async def command(self, request: WorkerStruct) -> WorkerStruct:
        """Raises: ValidationFailed if there is no model, and whatever the worker's link raises."""
        if isinstance(request, RunTurn) and request.model is None and not self._catalogue.is_settled:
            request = msgspec.structs.replace(request, model=await self._catalogue.find(None))
        if isinstance(request, RunTurn | ResumeTurn):
            model = request.model if isinstance(request, RunTurn) else None
            request = msgspec.structs.replace(request, windows=self._catalogue.windows(model))
        return await self._link.command(request)
