"""The models that were found when the controller started. No provider is asked, no credential shown."""

from __future__ import annotations

from peen.hub.api import DEFAULT_WINDOW_TOKENS, Api
from peen.hub.request import ApiRequest, ApiResponse, check_query, json_response
from peen.hub.router import Router
from peen.wire.rest import Model, ModelList


def add_models(router: Router) -> None:
    router.add("GET", "/api/v1/models", list_models)


def list_models(api: Api, request: ApiRequest) -> ApiResponse:
    """`contextWindowTokens` is the window that is enforced: the published one, or the configured one if smaller."""
    check_query(request)
    models = [
        Model(
            name=model.name,
            connection_name=model.connection_name,
            model_id=model.model_id,
            context_window_tokens=_window(model.context_window_tokens, api.max_context_tokens),
            image_input=model.image_input,
        )
        for model in api.models
    ]
    return json_response(ModelList(models=models, default=api.default_model))


def _window(published: int | None, configured: int | None) -> int:
    known = [size for size in (published, configured) if size is not None]
    return min(known, default=DEFAULT_WINDOW_TOKENS)
