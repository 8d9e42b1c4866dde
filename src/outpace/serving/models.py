"""GET /v1/models, and what answers say about the model they come from."""

from __future__ import annotations

import hashlib
import time
from typing import Any
from weakref import WeakKeyDictionary

from fastapi import APIRouter, Request

from outpace import __version__
from outpace.serving.errors import ApiError
from outpace.serving.logprobs import TokenBytes
from outpace.serving.protocol.schema import ERRORS
from outpace.serving.service import Service, service_of

router = APIRouter(tags=["models"])


class ServedModel:
    """The model of one service under its names.

    fingerprint: OpenAI's `system_fingerprint`; another one means that the same seed may give
        another answer.
    """

    def __init__(self, service: Service) -> None:
        llm = service.llm
        self.names = service.model_names
        self.created = int(time.time())
        self.max_model_len = llm.max_model_len
        self.methods = dict(llm.methods.limits)
        self.default_method = llm.methods.default
        self.token_bytes = TokenBytes(llm.tokenizer)
        identity = f"{llm.fingerprint}:{llm.dtype}:{__version__}"
        self.fingerprint = f"fp_{hashlib.sha256(identity.encode()).hexdigest()[:12]}"

    def check_name(self, name: str) -> None:
        """Raise ApiError 404 unless the model is called so."""
        if name not in self.names:
            raise ApiError(
                404,
                f"the model {name!r:.100} does not exist here; there is "
                + " and ".join(map(repr, self.names)),
                type="invalid_request_error",
                param="model",
                code="model_not_found",
            )

    def entry(self, name: str) -> dict[str, Any]:
        """The model in OpenAI's shape, and which drafting methods requests may choose from with
        at most how many draft tokens per step."""
        return {
            "id": name,
            "object": "model",
            "created": self.created,
            "owned_by": "outpace",
            "max_model_len": self.max_model_len,
            "speculation": {"default": self.default_method, "methods": self.methods},
        }


_SERVED: WeakKeyDictionary[Service, ServedModel] = WeakKeyDictionary()


def served_model(service: Service) -> ServedModel:
    """The model of a service; made when first asked for."""
    if service not in _SERVED:
        _SERVED[service] = ServedModel(service)
    return _SERVED[service]


@router.get("/v1/models", responses=ERRORS)
async def list_models(request: Request) -> dict[str, Any]:
    """The names of the one model."""
    served = served_model(service_of(request))
    return {"object": "list", "data": [served.entry(name) for name in served.names]}


@router.get("/v1/models/{name:path}", responses=ERRORS)
async def get_model(request: Request, name: str) -> dict[str, Any]:
    """The model by one of its names."""
    served = served_model(service_of(request))
    served.check_name(name)
    return served.entry(name)
