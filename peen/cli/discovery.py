"""Asking the upstreams of this configuration for their models, without a controller."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from functools import partial

import trio

from peen.entropy import Entropy
from peen.errors import ConfigurationInvalid
from peen.log import configure_logging
from peen.model.registry import Models
from peen.model.stream import ModelInfo
from peen.settings import Settings
from peen.wire.launch import UpstreamConfig


@dataclass(frozen=True, slots=True)
class Offer:
    """What one upstream said. `failure` is why it offers nothing; None if it answered, were it with no model."""

    upstream: str
    models: tuple[ModelInfo, ...]
    failure: str | None
    took_ms: int


def ask_upstreams(settings: Settings, entropy: Entropy, *, within_s: float) -> list[Offer]:
    """Ask all of them at once, each for at most `within_s` seconds; in the order of the configuration."""
    # A failure is part of the answer here: nothing but errors is logged, and no file is written.
    with configure_logging("error", "text", False, None, 0, entropy, stream=sys.stderr):
        return trio.run(partial(_ask_all, settings.upstreams, entropy, within_s))


async def _ask_all(configs: tuple[UpstreamConfig, ...], entropy: Entropy, within_s: float) -> list[Offer]:
    offers: dict[str, Offer] = {}

    async def ask(config: UpstreamConfig) -> None:
        began_s = entropy.monotonic_s()
        models, failure = await _ask(config, within_s)
        took_ms = int((entropy.monotonic_s() - began_s) * 1000)
        offers[config.name] = Offer(config.name, models, failure, took_ms)

    async with trio.open_nursery() as nursery:
        for config in configs:
            nursery.start_soon(ask, config)
    return [offers[config.name] for config in configs]


async def _ask(config: UpstreamConfig, within_s: float) -> tuple[tuple[ModelInfo, ...], str | None]:
    try:
        models = Models.build([config], os.environ)
    except ConfigurationInvalid as wrong:
        return (), wrong.problem
    with trio.move_on_after(within_s) as limit:
        await models.discover()
    if limit.cancelled_caught:
        return (), f"no answer within {within_s:g} s"
    return models.list, models.failures.get(config.name)
