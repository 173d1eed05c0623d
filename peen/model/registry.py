"""The configured upstreams and the models that they offer."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import structlog
import trio

from peen.errors import ConfigurationInvalid, ModelError, ValidationFailed
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

    @classmethod
    def build(cls, upstreams: Sequence[UpstreamConfig], environ: Mapping[str, str]) -> Models:
        """Make the clients; contacts nobody.

        Raises: ConfigurationInvalid for an unknown type, a script that is wrong, or a key variable that is not set.
        """
        for config in upstreams:
            if config.api_key_env is not None and not environ.get(config.api_key_env):
                raise _invalid(config, f"apiKeyEnv names {config.api_key_env}, which is not set or empty")
        return cls([_build_upstream(config) for config in upstreams])

    async def discover(self) -> None:
        """Ask every upstream for its models, all at once. One that fails is logged and offers none."""
        found: dict[str, list[ModelInfo]] = {}
        async with trio.open_nursery() as nursery:
            for upstream in self._upstreams.values():
                nursery.start_soon(_discover_one, upstream, found)
        self._infos = {info.name: info for name in self._upstreams for info in found.get(name, ())}

    @property
    def list(self) -> tuple[ModelInfo, ...]:
        """Every model that was found."""
        return tuple(self._infos.values())

    def resolve(self, qualified: str) -> tuple[Upstream, ModelInfo]:
        """The upstream and the model called `<upstream>/<model id>`.

        Raises: ValidationFailed naming the model and some that exist.
        """
        info = self._infos.get(qualified)
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
                raise ConfigurationInvalid("PEEN_UPSTREAMS", "no upstream offers a model", example=_EXAMPLE)
            return self.resolve(next(iter(self._infos)))
        try:
            return self.resolve(name)
        except ValidationFailed as exc:
            raise ConfigurationInvalid(
                "PEEN_DEFAULT_MODEL", str(exc), example=next(iter(self._infos), "scripted/demo")
            ) from exc


async def _discover_one(upstream: Upstream, found: dict[str, list[ModelInfo]]) -> None:
    try:
        with trio.fail_after(DISCOVERY_S):
            found[upstream.name] = await upstream.discover()
    except ModelError as exc:
        log.warning("provider_discovery_failed", upstream=upstream.name, error=str(exc))
    except trio.TooSlowError:
        log.warning("provider_discovery_failed", upstream=upstream.name, error=f"no answer within {DISCOVERY_S:g} s")


def _build_scripted(config: UpstreamConfig) -> Upstream:
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


_BUILDERS: Final[dict[str, Callable[[UpstreamConfig], Upstream]]] = {"scripted": _build_scripted}


def _build_upstream(config: UpstreamConfig) -> Upstream:
    builder = _BUILDERS.get(config.type)
    if builder is None:
        known = ", ".join(sorted(_BUILDERS))
        raise _invalid(config, f"type {config.type!r} is not part of this release; known: {known}")
    return builder(config)


def _invalid(config: UpstreamConfig, problem: str) -> ConfigurationInvalid:
    return ConfigurationInvalid("PEEN_UPSTREAMS", f"upstream {config.name!r}: {problem}", example=_EXAMPLE)
