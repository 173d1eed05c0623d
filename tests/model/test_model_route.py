from __future__ import annotations

import pytest
import trio
from transport_kit import CHUNKED, END, Stream, provider, read_request

from peen.errors import ModelError
from peen.model.direct import DirectTransport
from peen.model.proxied import HttpxTransport
from peen.model.route import preloads, transport_for
from peen.wire.launch import UpstreamConfig

PROXY = "http://proxy:3128"


@pytest.mark.parametrize(
    ("url", "environ", "is_proxied"),
    [
        ("https://host/v1", {}, False),
        ("https://host/v1", {"HTTPS_PROXY": PROXY}, True),
        ("https://host/v1", {"https_proxy": PROXY}, True),
        ("https://host/v1", {"HTTP_PROXY": PROXY}, False),
        ("http://host/v1", {"HTTP_PROXY": PROXY}, True),
        ("http://host/v1", {"HTTPS_PROXY": PROXY}, False),
        ("http://host/v1", {"ALL_PROXY": PROXY}, True),
        ("https://host/v1", {"all_proxy": PROXY}, True),
        ("https://host/v1", {"HTTPS_PROXY": ""}, False),
        ("https://host/v1", {"HTTPS_PROXY": PROXY, "https_proxy": ""}, False),
        ("https://host/v1", {"https_proxy": "", "HTTPS_PROXY": PROXY}, False),
        ("https://host/v1", {"HTTPS_PROXY": PROXY, "NO_PROXY": "host"}, False),
        ("https://api.host:8443/v1", {"HTTPS_PROXY": PROXY, "NO_PROXY": "other, .host"}, False),
        ("https://me:secret@host/v1", {"HTTPS_PROXY": PROXY, "no_proxy": "host"}, False),
        ("https://host/v1", {"HTTPS_PROXY": PROXY, "NO_PROXY": "*"}, False),
        ("https://host/v1", {"HTTPS_PROXY": PROXY, "NO_PROXY": "other"}, True),
        ("https://host/v1", {"NO_PROXY": "other"}, False),
        ("http://host/v1", {"HTTP_PROXY": PROXY, "REQUEST_METHOD": "GET"}, False),
        ("http://host/v1", {"http_proxy": PROXY, "REQUEST_METHOD": "GET"}, True),
    ],
)
def test_the_environment_says_which_way_a_provider_is_reached(
    url: str, environ: dict[str, str], is_proxied: bool
) -> None:
    assert type(transport_for(url, environ)) is (HttpxTransport if is_proxied else DirectTransport)


def without_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


async def test_a_request_goes_to_the_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bytes] = []

    async def proxy(stream: Stream) -> None:
        seen.append(await read_request(stream))
        await stream.send_all(CHUNKED + b"2\r\nhi\r\n" + END)

    without_proxies(monkeypatch)
    async with provider(proxy) as (url, _):
        address = url.removesuffix("/v1")
        monkeypatch.setenv("HTTP_PROXY", address)
        transport = transport_for("http://provider.invalid/v1", {"HTTP_PROXY": address})
        async with transport.send("GET", "http://provider.invalid/v1", {}) as reply:
            assert await reply.receive() == b"hi"
        await transport.aclose()

    assert seen[0].startswith(b"GET http://provider.invalid/v1 HTTP/1.1\r\n")


@pytest.mark.parametrize("proxy", ["socks5://me:secret@proxy:1080", "gopher://me:secret@proxy"])
async def test_a_proxy_of_a_kind_that_is_not_supported_is_told(monkeypatch: pytest.MonkeyPatch, proxy: str) -> None:
    without_proxies(monkeypatch)
    monkeypatch.setenv("ALL_PROXY", proxy)
    transport = transport_for("http://provider.invalid/v1", {"ALL_PROXY": proxy})

    with pytest.raises(ModelError, match="the proxy in the environment is of a kind that is not supported") as caught:
        async with transport.send("GET", "http://provider.invalid/v1", {}):
            await trio.lowlevel.checkpoint()

    assert "secret" not in str(caught.value)
    assert not caught.value.retryable


@pytest.mark.parametrize(
    ("upstreams", "environ", "found"),
    [
        ([("scripted", None)], {}, ()),
        ([("openai", "http://host/v1")], {}, ("peen.model.direct",)),
        ([("openai", None)], {}, ("peen.model.direct", "peen.model.connection:preload_tls")),
        (
            [("openai", "http://a/v1"), ("scripted", None), ("openai", "https://b/v1"), ("openai", "https://c/v1")],
            {},
            ("peen.model.direct", "peen.model.connection:preload_tls"),
        ),
        ([("openai", None)], {"HTTPS_PROXY": PROXY}, ("httpx",)),
        ([("openai", None), ("openai", "http://a/v1")], {"HTTPS_PROXY": PROXY}, ("httpx", "peen.model.direct")),
    ],
)
def test_a_fork_server_loads_what_the_configured_providers_need(
    upstreams: list[tuple[str, str | None]], environ: dict[str, str], found: tuple[str, ...]
) -> None:
    configs = [UpstreamConfig(name="u", type=kind, base_url=url) for kind, url in upstreams]

    assert preloads(configs, environ) == found
