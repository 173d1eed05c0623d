"""Which way a provider is reached, straight or by a proxy, and what a process needs for it.

This module imports little: `peen run` asks it before it imports the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from peen.model.transport import Transport
    from peen.wire.launch import UpstreamConfig

_WITHOUT_NETWORK: Final = "scripted"
_DEFAULT_URL: Final = "https://"
"""Of an upstream that names no base URL: every provider's own one is encrypted, which is all that matters here."""


def transport_for(url: str, environ: Mapping[str, str]) -> Transport:
    """A new transport to the provider at `url`; connects to nobody.

    It is a DirectTransport unless `environ` names a proxy for the URL. `environ` should be the process' own, since
    that is where an HttpxTransport looks for the proxy's address.
    """
    if is_proxied(url, environ):
        from peen.model.proxied import HttpxTransport

        return HttpxTransport(url)
    from peen.model.direct import DirectTransport

    return DirectTransport()


def is_proxied(url: str, environ: Mapping[str, str]) -> bool:
    """Whether `environ` sends requests to `url` through a proxy.

    As everywhere: HTTP_PROXY, HTTPS_PROXY and ALL_PROXY name one, NO_PROXY names hosts that need none; the same
    in lower case counts more.
    """
    proxies: dict[str, str] = {}
    for is_lower in (False, True):
        for name, value in environ.items():
            if name.lower().endswith("_proxy") and (name == name.lower()) is is_lower:
                proxies[name.lower().removesuffix("_proxy")] = value
    if "REQUEST_METHOD" in environ and "http_proxy" not in environ:
        proxies.pop("http", None)  # a CGI script's HTTP_PROXY is the client's header `Proxy`
    parts = urlsplit(url)
    if not (proxies.get(parts.scheme) or proxies.get("all")):
        return False
    from urllib.request import proxy_bypass  # it brings http.client and more

    return not proxy_bypass(parts.netloc.rpartition("@")[2], {"no": proxies.get("no", "")})


def preloads(upstreams: Iterable[UpstreamConfig], environ: Mapping[str, str]) -> tuple[str, ...]:
    """What a fork server should load so that its children share it: `module`, or `module:function` to be called."""
    found: dict[str, None] = {}
    for upstream in upstreams:
        if upstream.type == _WITHOUT_NETWORK:
            continue
        url = upstream.base_url or _DEFAULT_URL
        if is_proxied(url, environ):
            found["httpx"] = None
            continue
        found["peen.model.direct"] = None
        if url.startswith("https:"):
            found["peen.model.connection:preload_tls"] = None
    return tuple(found)
