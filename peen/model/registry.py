"""The configured upstreams and the models that they offer."""

from __future__ import annotations

import difflib
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import structlog
import trio

from peen.entropy import SystemEntropy
from peen.errors import ConfigurationInvalid, ModelError, ValidationFailed
from peen.model import anthropic
from peen.model.anthropic import AnthropicUpstream
from peen.model.openai import OpenAiUpstream, base_url_of
from peen.model.route import transport_for
from peen.model.script import load_script
from peen.model.scripted import ScriptedUpstream
from peen.model.stream import ModelInfo, Upstream
from peen.wire.launch import UpstreamConfig

EMBEDDED_UPSTREAM: Final = "scripted"
DISCOVERY_S: Final = 30.0  # a provider that takes longer to list its models is skipped
REDISCOVERY_S: Final = 3.0  # the same, while a message waits for it
REDISCOVERY_PAUSE_S: Final = 5.0
"""Seconds after the last look in which providers that failed are not asked again."""
_SHOWN_MODELS: Final = 5
_NO_LIST: Final = (404, 405, 501)
_EXAMPLE: Final = '[{"name":"scripted","type":"scripted","script":"/path/to/script.yaml"}]'

_REMOTE: Final = (AnthropicUpstream, OpenAiUpstream)

log = structlog.get_logger(__name__)


class Models:
    """Upstreams by name, and after `discover` their models in the order of the configuration."""

    def __init__(self, upstreams: Sequence[Upstream]) -> None:
        self._upstreams = {upstream.name: upstream for upstream in upstreams}
        self._infos: dict[str, ModelInfo] = {}
        self._failures: dict[str, str] = {}
        self._trusted: dict[str, OpenAiUpstream | AnthropicUpstream] = {}
        self._asking = trio.Lock()
        self._asked_at = -math.inf  # of trio's clock

    @classmethod
    def build(cls, upstreams: Sequence[UpstreamConfig], environ: Mapping[str, str]) -> Models:
        """Make the clients; contacts nobody.

        Raises: ConfigurationInvalid for an unknown type, a script that is wrong, or a key variable that is not set.
        """
        for config in upstreams:
            if config.api_key_env is not None and not environ.get(config.api_key_env):
                raise _invalid(config, f"apiKeyEnv names {config.api_key_env}, which is not set or empty")
        return cls([_build_upstream(config, environ) for config in upstreams])

    async def discover(self, *, ask_providers: bool = True) -> None:
        """Ask every upstream for its models, all at once. One that fails is logged and offers none.

        Without `ask_providers` nothing goes over the network, and a provider's models are taken by their names: a
        worker serves models that the controller has found, also while their provider is down.
        """
        remote = {name: one for name, one in self._upstreams.items() if isinstance(one, _REMOTE)}
        self._trusted = {} if ask_providers else remote
        self._infos, self._failures = {}, {}
        await self._ask([name for name in self._upstreams if name not in self._trusted], DISCOVERY_S)

    async def rediscover(self) -> None:
        """Ask those again that failed when they were last asked; within seconds, and not if that was just now.

        Of several callers at once one asks, and the others wait for what it finds.
        """
        async with self._asking:
            if self._failures and trio.current_time() >= self._asked_at + REDISCOVERY_PAUSE_S:
                await self._ask(tuple(self._failures), REDISCOVERY_S)
                log.info("providers were asked again", models=len(self._infos), failed=sorted(self._failures))

    async def _ask(self, names: Sequence[str], within_s: float) -> None:
        found: dict[str, Sequence[ModelInfo]] = {}
        failures: dict[str, str] = {}
        listless: list[str] = []
        async with trio.open_nursery() as nursery:
            for name in names:
                nursery.start_soon(_discover_one, self._upstreams[name], within_s, found, failures, listless)
        self._asked_at = trio.current_time()
        # A service that has no list may have models all the same: they are taken by their names.
        self._trusted = {name: one for name, one in self._trusted.items() if name not in found}
        self._trusted |= {name: one for name in listless if isinstance(one := self._upstreams[name], _REMOTE)}
        kept = [info for info in self._infos.values() if info.connection_name not in found]
        infos = [*kept, *itertools.chain.from_iterable(found.values())]
        self._infos = {info.name: info for name in self._upstreams for info in infos if info.connection_name == name}
        self._failures = {name: failures[name] for name in self._upstreams if name in failures}

    @property
    def list(self) -> tuple[ModelInfo, ...]:
        """Every model that was found."""
        return tuple(self._infos.values())

    @property
    def failures(self) -> Mapping[str, str]:
        """Upstreams that offered no models when they were asked, and why."""
        return self._failures

    def is_missing(self, name: str | None) -> bool:
        """Whether the model called `name`, or without a name any at all, is unknown only since an upstream failed."""
        if name is None:
            return not self._infos and bool(self._failures)
        return not self.is_known(name) and name.partition("/")[0] in self._failures

    def resolve(self, qualified: str) -> tuple[Upstream, ModelInfo]:
        """The upstream and the model called `<upstream>/<model id>`.

        Raises: ValidationFailed naming the model and some that exist.
        """
        info = self._infos.get(qualified)
        name, _, model_id = qualified.partition("/")
        if info is None and model_id and name in self._trusted:
            return self._trusted[name], self._trusted[name].describe(model_id)
        if info is None and name in self._failures:
            raise ValidationFailed(
                f"model {qualified!r} cannot be used: upstream {name!r} offered no models when they were listed "
                f"({self._failures[name]})"
            )
        if info is None:
            close = difflib.get_close_matches(qualified, self._infos, n=_SHOWN_MODELS, cutoff=0.0)
            known = ", ".join(close) if close else "none, since no upstream answered"
            raise ValidationFailed(f"model {qualified!r} does not exist; known models: {known}")
        return self._upstreams[info.connection_name], info

    def is_known(self, name: str) -> bool:
        """Whether `resolve` finds the model called `name`."""
        upstream, _, model_id = name.partition("/")
        return name in self._infos or bool(model_id and upstream in self._trusted)

    def nothing(self) -> str:
        """That there is no model, with the reason of each upstream."""
        reasons = "; ".join(f"{upstream!r}: {reason}" for upstream, reason in self._failures.items())
        return f"no upstream offers a model{f' ({reasons})' if reasons else ''}"

    def default(self, name: str | None) -> tuple[Upstream, ModelInfo]:
        """The model called `name`, or without a name the first model of the first upstream that offers one.

        Raises: ConfigurationInvalid if there is no such model.
        """
        if name is None:
            if not self._infos:
                raise ConfigurationInvalid("PEEN_UPSTREAMS", self.nothing(), example=_EXAMPLE)
            return self.resolve(next(iter(self._infos)))
        try:
            return self.resolve(name)
        except ValidationFailed as exc:
            raise ConfigurationInvalid(
                "PEEN_DEFAULT_MODEL", str(exc), example=next(iter(self._infos), "scripted/demo")
            ) from exc


async def _discover_one(
    upstream: Upstream,
    within_s: float,
    found: dict[str, Sequence[ModelInfo]],
    failures: dict[str, str],
    listless: list[str],
) -> None:
    reason = f"no answer within {within_s:g} s"
    try:
        with trio.move_on_after(within_s) as limit:
            found[upstream.name] = await upstream.discover()
    except ModelError as exc:
        reason = str(exc)
        if exc.http_status in _NO_LIST:
            reason += f'; if it lists no models, name them: "models" of the upstream, or {upstream.name}/MODEL'
            listless.append(upstream.name)
    else:
        if not limit.cancelled_caught:
            return
    failures[upstream.name] = reason
    log.warning("provider_discovery_failed", upstream=upstream.name, error=reason)


def _build_scripted(config: UpstreamConfig, _environ: Mapping[str, str]) -> Upstream:
    try:
        script = None if config.script is None else load_script(Path(config.script))
        return ScriptedUpstream(
            config.name,
            script,
            with_demo=script is None or config.name == EMBEDDED_UPSTREAM,
            image_input=config.image_input,
        )
    except (ValidationFailed, ValueError) as exc:
        raise _invalid(config, str(exc)) from exc


def _build_openai(config: UpstreamConfig, environ: Mapping[str, str]) -> Upstream:
    transport = transport_for(base_url_of(config), environ)
    return OpenAiUpstream(config, _key(config, environ), transport, SystemEntropy())


def _build_anthropic(config: UpstreamConfig, environ: Mapping[str, str]) -> Upstream:
    transport = transport_for(config.base_url or anthropic.DEFAULT_BASE_URL, environ)
    return AnthropicUpstream(config, _key(config, environ), transport, SystemEntropy())


def _key(config: UpstreamConfig, environ: Mapping[str, str]) -> str | None:
    key = None if config.api_key_env is None else environ.get(config.api_key_env, "").strip()
    if key is not None and not (key and key.isascii() and key.isprintable()):
        raise _invalid(config, f"the key in {config.api_key_env} holds characters that no HTTP header may have")
    return key


_BUILDERS: Final[dict[str, Callable[[UpstreamConfig, Mapping[str, str]], Upstream]]] = {
    "anthropic": _build_anthropic,
    "openai": _build_openai,
    "scripted": _build_scripted,
    "zai-coding": _build_openai,
}


def _build_upstream(config: UpstreamConfig, environ: Mapping[str, str]) -> Upstream:
    builder = _BUILDERS.get(config.type)
    if builder is None:
        known = ", ".join(sorted(_BUILDERS))
        raise _invalid(config, f"type {config.type!r} is not part of this release; known: {known}")
    return builder(config, environ)


def _invalid(config: UpstreamConfig, problem: str) -> ConfigurationInvalid:
    return ConfigurationInvalid("PEEN_UPSTREAMS", f"upstream {config.name!r}: {problem}", example=_EXAMPLE)
