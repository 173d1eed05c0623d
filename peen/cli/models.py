"""`peen models`: which models a message may name."""

from __future__ import annotations

from typing import Final

import click
import msgspec

from peen.cli.client import CallRefused, Client
from peen.cli.ends import COMPLETED, FAILED, REFUSED, CommandEnds, say
from peen.cli.reach import endpoint
from peen.cli.startup import load
from peen.cli.streams import echo
from peen.control.lock import read_lock
from peen.entropy import Entropy, SystemEntropy
from peen.settings import Settings
from peen.wire.rest import ModelList, encode

ASK_S: Final = 30.0
"""As long as a controller waits for an upstream when it starts."""


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print the API's JSON.")
def models(as_json: bool) -> int:
    """List the models that a message may name, a line each, the default one marked.

    A running controller tells what it found at its start; without one, the upstreams are asked now. Exit code 1 if no
    upstream offers a model, or none offers the default one.
    """
    settings, entropy = load(), SystemEntropy()
    holder = read_lock(settings.state_dir)
    if holder is None:
        found, is_startable = ask(settings, entropy)
    else:
        try:
            answer = Client(endpoint(settings, holder), entropy).get("/api/v1/models")
        except CallRefused as refused:
            raise CommandEnds(str(refused), REFUSED) from refused
        found, is_startable = msgspec.json.decode(answer, type=ModelList), True
    echo(encode(found) if as_json else readable(found), nl=as_json or bool(found.models))
    return COMPLETED if is_startable else FAILED


def ask(settings: Settings, entropy: Entropy) -> tuple[ModelList, bool]:
    """What a controller would find if it started now, and whether it could. Says what is wrong on standard error."""
    # Imported here: a running controller is asked without an event loop.
    from peen.cli.discovery import ask_upstreams
    from peen.hub.rest.models import model_list

    offers = ask_upstreams(settings, entropy, within_s=ASK_S)
    infos = [info for offer in offers for info in offer.models]
    for offer in offers:
        if offer.failure is not None:
            say(f"upstream {offer.upstream}: {offer.failure}")
    names = [info.name for info in infos]
    default = settings.default_model or next(iter(names), "")
    if not names:
        say("no upstream offers a model")
    elif default not in names:
        say(f"the default model {default} (PEEN_DEFAULT_MODEL) is offered by no upstream")
    return model_list(infos, default, settings.max_context_tokens), default in names


def readable(found: ModelList) -> str:
    """A line a model: name, window in tokens, whether it takes images, whether it is the default."""
    return "\n".join(
        f"{model.name}\t{model.context_window_tokens}\timageInput={_word(model.image_input)}"
        f"\tdefault={_word(model.name == found.default)}"
        for model in found.models
    )


def _word(value: bool) -> str:
    return str(value).lower()
