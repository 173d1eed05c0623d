from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager

import pytest
import trio
from msgspec.structs import replace
from structlog.testing import capture_logs
from trio.testing import MockClock

from peen.control.catalogue import Catalogue, NamingLink
from peen.errors import ConfigurationInvalid, ModelError, ValidationFailed
from peen.model.registry import REDISCOVERY_PAUSE_S, Models
from peen.model.stream import ModelInfo, ModelRequest, StreamEvent
from peen.wire.worker import CancelTurns, ResumeTurn, RunTurn, TurnEnded
from peen.wire.workerstruct import WorkerStruct


class Provider:
    def __init__(self, name: str, *models: str, is_down: bool = False) -> None:
        self.name, self._models, self.is_down = name, models, is_down

    async def discover(self) -> list[ModelInfo]:
        await trio.lowlevel.checkpoint()
        if self.is_down:
            raise ModelError("no such host", kind="transport", retryable=True)
        return [
            ModelInfo(name=f"{self.name}/{each}", connection_name=self.name, model_id=each) for each in self._models
        ]

    def stream(self, request: ModelRequest) -> AbstractAsyncContextManager[AsyncIterator[StreamEvent]]:
        raise AssertionError("nothing here asks a model")


class NotingLink:
    def __init__(self) -> None:
        self.told: list[WorkerStruct] = []

    async def command(self, request: WorkerStruct) -> WorkerStruct:
        await trio.lowlevel.checkpoint()
        self.told.append(request)
        return TurnEnded(state="completed")


async def catalogue_of(*providers: Provider, configured: str | None = None) -> Catalogue:
    models = Models(providers)
    await models.discover()
    return Catalogue(models, configured)


def turn(model: str | None = None) -> RunTurn:
    return RunTurn(turn_id="t", request_id="r", message="m", model=model)


async def test_the_default_is_known_from_the_start_if_a_provider_answers() -> None:
    catalogue = await catalogue_of(Provider("a", "x", is_down=True), Provider("b", "y"))

    assert (catalogue.default, catalogue.is_settled, catalogue.is_missing(None)) == ("b/y", True, False)
    assert await catalogue.find(None) == "b/y"


async def test_during_an_outage_there_is_no_default_and_the_log_names_each_provider() -> None:
    with capture_logs() as logs:
        catalogue = await catalogue_of(Provider("a", "x", is_down=True), Provider("b", is_down=True))

    assert (catalogue.default, catalogue.listed, catalogue.is_settled) == ("", [], False)
    assert logs[-1]["log_level"] == "warning"
    assert logs[-1]["failures"] == {"a": "no such host", "b": "no such host"}
    with pytest.raises(ValidationFailed, match=r"no model is available: .*\('a': no such host; 'b': no such host\)"):
        await catalogue.find(None)


async def test_a_default_whose_provider_is_down_is_kept_and_named_in_the_refusal() -> None:
    catalogue = await catalogue_of(Provider("a", "x", is_down=True), Provider("b", "y"), configured="a/x")

    assert (catalogue.default, catalogue.is_settled, catalogue.is_missing(None)) == ("a/x", True, True)
    with pytest.raises(ValidationFailed, match="model 'a/x' cannot be used: upstream 'a' offered no models"):
        await catalogue.find(None)
    assert await catalogue.find("b/y") == "b/y"


@pytest.mark.parametrize("configured", ["b/z", "c/x"])
async def test_a_default_that_no_outage_explains_is_a_wrong_setting(configured: str) -> None:
    with pytest.raises(
        ConfigurationInvalid, match=f"PEEN_DEFAULT_MODEL: model '{configured}' does not exist"
    ) as caught:
        await catalogue_of(Provider("a", "x", is_down=True), Provider("b", "y"), configured=configured)
    assert caught.value.example == "b/y"


async def test_providers_that_answer_and_have_nothing_are_a_wrong_setting() -> None:
    with pytest.raises(ConfigurationInvalid, match="PEEN_UPSTREAMS: no upstream offers a model"):
        await catalogue_of(Provider("a"))


async def test_what_comes_back_is_found_listed_and_told_to_workers(autojump_clock: MockClock) -> None:
    provider, worker = Provider("a", "x", "y", is_down=True), NotingLink()
    catalogue = await catalogue_of(provider)
    listed, link = catalogue.listed, NamingLink(worker, catalogue)
    with pytest.raises(ValidationFailed, match="no model is available"):
        await link.command(turn())
    provider.is_down = False
    await trio.sleep(REDISCOVERY_PAUSE_S)

    await link.command(turn())
    await link.command(turn("a/y"))
    await link.command(CancelTurns())

    assert worker.told == [turn("a/x"), turn("a/y"), CancelTurns()]
    assert [info.name for info in listed] == ["a/x", "a/y"]
    assert catalogue.default == "a/x"
    assert not catalogue.is_missing(None)


# --- windows and summaries --------------------------------------------------------------------------------------------


class Publishing(Provider):
    """Publishes a window for its models."""

    async def discover(self) -> list[ModelInfo]:
        return [replace(info, context_window_tokens=32_768) for info in await super().discover()]


async def test_a_worker_is_told_the_windows_of_the_models_that_a_turn_may_use() -> None:
    models = Models([Publishing("a", "x", "y", "z"), Provider("b", "w")])
    await models.discover()
    catalogue, link = Catalogue(models, "a/x", summarizer="a/z"), NotingLink()
    naming = NamingLink(link, catalogue)

    await naming.command(turn())
    await naming.command(turn("b/w"))
    await naming.command(ResumeTurn(turn_id="t", execution_id="e"))
    await naming.command(CancelTurns())

    assert link.told == [
        replace(turn(), windows={"a/x": 32_768, "a/z": 32_768}),
        replace(turn("b/w"), windows={"a/z": 32_768}),
        ResumeTurn(turn_id="t", execution_id="e", windows={"a/x": 32_768, "a/z": 32_768}),
        CancelTurns(),
    ]


async def test_a_summarizer_that_does_not_exist_is_a_mistake_and_one_that_is_down_is_not() -> None:
    models = Models([Provider("a", "x"), Provider("b", "y", is_down=True)])
    with capture_logs():
        await models.discover()

    with pytest.raises(ConfigurationInvalid, match="PEEN_COMPACTION_MODEL: model 'a/z' does not exist"):
        Catalogue(models, None, summarizer="a/z")
    assert Catalogue(models, None, summarizer="b/y").default == "a/x"
