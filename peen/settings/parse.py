"""The text of one setting to its value. No I/O here: what needs the disk is checked by `load` and `directories`."""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Final

import msgspec

from peen.duration import parse_duration_ms
from peen.settings.address import parse_allowed_host, parse_listen_address
from peen.settings.table import NUMERIC, Kind, Variable

_SWITCH: Final = {
    **dict.fromkeys(("on", "true", "yes", "t", "1"), True),
    **dict.fromkeys(("off", "false", "no", "f", "0"), False),
}
_WHOLE: Final = re.compile(r"[+-]?[0-9]+")
_AMOUNT: Final = re.compile(r"[+-]?[0-9]+(\.[0-9]+)?")
_LONGEST_AMOUNT: Final = 40  # characters; Python refuses to convert whole numbers of thousands of digits
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
NO_DOCKER: Final = "Docker agent spaces are not part of this release"


def parse_value(variable: Variable, text: str) -> object:
    """The value of `variable` written as `text` (never empty). 0 becomes the default where that is the rule.

    Durations are milliseconds. Raises: ValueError with what is wrong, without the variable's name, and without the
    text if it is a secret.
    """
    value = _PARSERS[variable.kind](variable, text)
    if value == 0 and variable.kind in NUMERIC and variable.zero == "default":
        return default_value(variable)
    return value


def default_value(variable: Variable) -> object:
    """What an unset variable stands for; None where nothing does or where it is worked out from others."""
    if variable.default is None:
        return None
    return _PARSERS[variable.kind](variable, variable.default)


def parse_switch(text: str) -> bool:
    """Raises: ValueError if the word is neither a yes nor a no."""
    try:
        return _SWITCH[text.lower()]
    except KeyError:
        raise ValueError(f"{shown(text)} is neither on nor off") from None


def shown(text: str) -> str:
    """A wrong value as an error message may quote it: on one line, and not the whole of a long one."""
    return repr(text if len(text) <= 60 else text[:60] + "…")


def _bounded(variable: Variable, value: int, text: str) -> int:
    if value < 0:
        raise ValueError(f"{shown(text)} is negative")
    if value > variable.most:
        raise ValueError(f"{shown(text)} is above {variable.most}")
    return value


def _duration(variable: Variable, text: str) -> int:
    value = parse_duration_ms(text)
    if value < 0:
        raise ValueError(f"{shown(text)} is negative")
    return value


def _whole(variable: Variable, text: str) -> int:
    if not _WHOLE.fullmatch(text) or len(text) > _LONGEST_AMOUNT:
        raise ValueError(f"{shown(text)} is not a whole number")
    return _bounded(variable, int(text), text)


def _usd(variable: Variable, text: str) -> Decimal:
    if not _AMOUNT.fullmatch(text) or len(text) > _LONGEST_AMOUNT:
        raise ValueError(f"{shown(text)} is not an amount")
    _bounded(variable, int(Decimal(text).to_integral_value("ROUND_UP")), text)
    return Decimal(text)


def _switch(variable: Variable, text: str) -> bool:
    return parse_switch(text)


def _choice(variable: Variable, text: str) -> str:
    if text not in variable.words:
        if variable.name == "PEEN_DEFAULT_AGENT_SPACE" and text.startswith("docker:"):
            raise ValueError(NO_DOCKER)
        raise ValueError(f"{shown(text)} is not one of: {', '.join(variable.words)}")
    return text


def _name(variable: Variable, text: str) -> str:
    if not _NAME.fullmatch(text):
        raise ValueError(f"{shown(text)} is not a name (letters, digits, '_', '.', '-')")
    return text


def _text(variable: Variable, text: str) -> str:
    if not text.isprintable() or " " in text:
        raise ValueError(f"{shown(text)} has spaces or unprintable characters")
    return text


def _model(variable: Variable, text: str) -> str:
    upstream, _slash, model = text.partition("/")
    if not upstream or not model or not text.isprintable():
        raise ValueError(f"{shown(text)} is not <upstream>/<model>")
    return text


def _secret(variable: Variable, text: str) -> str:
    # A bearer token travels in a header: anything else could never be sent back to us.
    if not all("!" <= character <= "~" for character in text):
        raise ValueError("holds spaces or characters that are not printable ASCII")
    return text


def _directory(variable: Variable, text: str) -> Path:
    if not text.startswith("/"):
        raise ValueError(f"{shown(text)} is not an absolute path")
    if "\0" in text:
        raise ValueError(f"{shown(text)} holds a NUL character")
    return Path(text)


def _address(variable: Variable, text: str) -> object:
    address = parse_listen_address(text)
    if variable.name == "PEEN_METRICS_LISTEN_ADDRESS" and not (
        address.is_ip and address.is_loopback and address.port != 0
    ):
        raise ValueError(f"{shown(text)} is not a loopback IP address with a port")
    return address


def _hosts(variable: Variable, text: str) -> tuple[str, ...]:
    return tuple(parse_allowed_host(part.strip()) for part in text.split(",") if part.strip())


def _profiles(variable: Variable, text: str) -> tuple[()]:
    try:
        profiles = msgspec.json.decode(text, type=list[dict[str, msgspec.Raw]])
    except msgspec.DecodeError as exc:
        raise ValueError(f"is not a JSON list of profiles: {exc}") from None
    if profiles:
        raise ValueError(NO_DOCKER)
    return ()


def _docker_socket(variable: Variable, text: str) -> Path:
    raise ValueError(f"{NO_DOCKER}: unset it")


def _upstreams(variable: Variable, text: str) -> str:
    return text  # needs the environment and the configuration directory: `upstreams.parse_upstreams`


_PARSERS: Final[dict[Kind, Callable[[Variable, str], object]]] = {
    Kind.DURATION: _duration,
    Kind.COUNT: _whole,
    Kind.BYTES: _whole,
    Kind.TOKENS: _whole,
    Kind.USD: _usd,
    Kind.SWITCH: _switch,
    Kind.CHOICE: _choice,
    Kind.NAME: _name,
    Kind.MODEL: _model,
    Kind.TEXT: _text,
    Kind.SECRET: _secret,
    Kind.DIRECTORY: _directory,
    Kind.ADDRESS: _address,
    Kind.HOSTS: _hosts,
    Kind.UPSTREAMS: _upstreams,
    Kind.PROFILES: _profiles,
    Kind.DOCKER_SOCKET: _docker_socket,
}
