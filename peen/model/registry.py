"""The configured upstreams and the models that they offer."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import structlog
import trio

from peen.entropy import SystemEntropy
from peen.errors import ConfigurationInvalid, ModelError, ValidationFailed
from peen.model.openai import DEFAULT_BASE_URL, OpenAiUpstream
from peen.model.route import transport_for
from peen.model.script import load_script
from peen.model.scripted import ScriptedUpstream
from peen.model.stream import ModelInfo, Upstream
from peen.wire.worker import UpstreamConfig

EMBEDDED_UPSTREAM: Final = "scripted"
DISCOVERY_S: Final = 30.0  # a provider that takes longer to list its models is skipped
_SHOWN_MODELS: Final = 5
_EXAMPLE: Final = '[{"name":"scripted","type":"scripted","script":"/path/to/script.yaml"}]'

log = structlog.get_logger(__name__)


class Models:
    """Upstreams by name, and after `discover` their models in the order of the configuration."""

    def __init__(self, upstreams: Sequence[Upstream]) -> None:
        self._upstreams = {upstream.name: upstream for upstream in upstreams}
        self._infos: dict[str, ModelInfo] = {}
        self._failures: dict[str, str] = {}
        self._trusted: dict[str, OpenAiUpstream] = {}

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
        found: dict[str, list[ModelInfo]] = {}
        failures: dict[str, str] = {}
        remote = {name: upstream for name, upstream in self._upstreams.items() if isinstance(upstream, OpenAiUpstream)}
        self._trusted = {} if ask_providers else remote
        async with trio.open_nursery() as nursery:
            for upstream in self._upstreams.values():
                if upstream.name not in self._trusted:
                    nursery.start_soon(_discover_one, upstream, found, failures)
        self._infos = {info.name: info for name in self._upstreams for info in found.get(name, ())}
        self._failures = {name: failures[name] for name in self._upstreams if name in failures}

    @property
    def list(self) -> tuple[ModelInfo, ...]:
        """Every model that was found."""
        return tuple(self._infos.values())

    @property
    def failures(self) -> Mapping[str, str]:
        """Upstreams that offered no models when they were asked, and why."""
        return self._failures

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

    def default(self, name: str | None) -> tuple[Upstream, ModelInfo]:
        """The model called `name`, or without a name the first model of the first upstream that offers one.

        Raises: ConfigurationInvalid if there is no such model.
        """
        if name is None:
            if not self._infos:
                reasons = "; ".join(f"{upstream!r}: {reason}" for upstream, reason in self._failures.items())
                problem = f"no upstream offers a model{f' ({reasons})' if reasons else ''}"
                raise ConfigurationInvalid("PEEN_UPSTREAMS", problem, example=_EXAMPLE)
            return self.resolve(next(iter(self._infos)))
        try:
            return self.resolve(name)
        except ValidationFailed as exc:
            raise ConfigurationInvalid(
                "PEEN_DEFAULT_MODEL", str(exc), example=next(iter(self._infos), "scripted/demo")
            ) from exc


async def _discover_one(upstream: Upstream, found: dict[str, list[ModelInfo]], failures: dict[str, str]) -> None:
    reason = f"no answer within {DISCOVERY_S:g} s"
    try:
        with trio.move_on_after(DISCOVERY_S) as limit:
            found[upstream.name] = await upstream.discover()
    except ModelError as exc:
        reason = str(exc)
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
    key = None if config.api_key_env is None else environ.get(config.api_key_env, "").strip()
    if key is not None and not (key and key.isascii() and key.isprintable()):
        raise _invalid(config, f"the key in {config.api_key_env} holds characters that no HTTP header may have")
    transport = transport_for(config.base_url or DEFAULT_BASE_URL, environ)
    return OpenAiUpstream(config, key, transport, SystemEntropy())


_BUILDERS: Final[dict[str, Callable[[UpstreamConfig, Mapping[str, str]], Upstream]]] = {
    "openai": _build_openai,
    "scripted": _build_scripted,
}


def _build_upstream(config: UpstreamConfig, environ: Mapping[str, str]) -> Upstream:
    builder = _BUILDERS.get(config.type)
    if builder is None:
        known = ", ".join(sorted(_BUILDERS))
        raise _invalid(config, f"type {config.type!r} is not part of this release; known: {known}")
    return builder(config, environ)


def _invalid(config: UpstreamConfig, problem: str) -> ConfigurationInvalid:
    return ConfigurationInvalid("PEEN_UPSTREAMS", f"upstream {config.name!r}: {problem}", example=_EXAMPLE)
