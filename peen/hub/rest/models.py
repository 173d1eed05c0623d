"""The models that the controller has found. No provider is asked, no credential shown."""

from __future__ import annotations

from collections.abc import Iterable

from peen.context.budget import enforced_window
from peen.hub.api import Api
from peen.hub.request import ApiRequest, ApiResponse, check_query, json_response
from peen.hub.router import Router
from peen.model.stream import ModelInfo
from peen.wire.rest import Model, ModelList


def add_models(router: Router) -> None:
    router.add("GET", "/api/v1/models", list_models)


def list_models(api: Api, request: ApiRequest) -> ApiResponse:
    check_query(request)
    return json_response(model_list(api.models, api.default_model, api.max_context_tokens))


def model_list(found: Iterable[ModelInfo], default: str, max_context_tokens: int | None) -> ModelList:
    """`contextWindowTokens` is the window that is enforced: the published one, or the configured one if smaller."""
    models = [
        Model(
            name=model.name,
            connection_name=model.connection_name,
            model_id=model.model_id,
            context_window_tokens=enforced_window(model.context_window_tokens, max_context_tokens),
            image_input=model.image_input,
        )
        for model in found
    ]
    return ModelList(models=models, default=default)
