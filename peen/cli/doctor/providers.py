"""Upstreams: whether each of them lists its models, here and in the running controller."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from peen.cli.discovery import Offer
from peen.cli.doctor.finding import Finding, fail, ok, warn
from peen.settings import Settings

_ROADS = "check its baseUrl, its key, and the network"


def look_at_upstreams(settings: Settings, offers: Sequence[Offer], listed: Iterable[str] | None) -> Iterator[Finding]:
    """`offers` is what they said now; `listed` names the upstreams whose models a running controller has."""
    yield ok("upstreams", settings.upstream_choice)
    keys = {config.name: config.api_key_env for config in settings.upstreams}
    known = None if listed is None else set(listed)
    for offer in offers:
        about = f"upstream {offer.upstream}"
        key = keys[offer.upstream]
        shown = "" if key is None else f"; its key is in {key}"
        if offer.failure is not None:
            yield fail(about, f"{offer.failure}{shown}", mend=_ROADS)
        elif not offer.models:
            yield fail(
                about, f"it answers, and lists no models{shown}", mend="check its baseUrl and what the key may use"
            )
        elif known is not None and offer.upstream not in known:
            yield warn(
                about, "it answers now, but did not when the controller started", mend="peen stop, then peen run"
            )
        else:
            count = len(offer.models)
            yield ok(about, f"{count} model{'' if count == 1 else 's'} in {offer.took_ms} ms{shown}")
    yield look_at_default(settings.default_model, [info.name for offer in offers for info in offer.models])


def look_at_default(wanted: str | None, offered: Sequence[str]) -> Finding:
    about = "default model"
    if wanted is not None and wanted not in offered:
        return fail(about, f"{wanted} is not offered", mend="set PEEN_DEFAULT_MODEL to one that peen models lists")
    if not offered:
        return fail(about, "there is no model at all", mend="mend an upstream")
    return ok(about, wanted or f"{offered[0]}, the first of the first upstream")
