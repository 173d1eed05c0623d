from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from rest_kit import office
from world_kit import MODEL

from peen.model.stream import ModelInfo


async def test_the_models_that_were_found_and_the_default(tmp_path: Path) -> None:
    async with office(tmp_path) as own:
        found = await own.get("/models")

    assert ([model["name"] for model in found["models"]], found["default"]) == ([MODEL], MODEL)


@pytest.mark.parametrize("configured", ["", "o/a"])
async def test_while_no_provider_answers_the_list_is_empty_and_the_default_what_is_configured(
    tmp_path: Path, configured: str
) -> None:
    async with office(tmp_path) as own:
        own.api = replace(own.api, models=[], configured_default=configured)

        assert await own.get("/models") == {"models": [], "default": configured}


async def test_a_default_that_was_not_known_at_the_start_is_the_first_model(tmp_path: Path) -> None:
    async with office(tmp_path) as own:
        found = [ModelInfo(name=f"o/{each}", connection_name="o", model_id=each) for each in "ab"]
        own.api = replace(own.api, models=found, configured_default="")

        assert (await own.get("/models"))["default"] == "o/a"
