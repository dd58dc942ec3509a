"""Ray Serve application of a defence: the predictions at the purified images, from replicas on one or many machines.

Ray Serve distributes the requests, starts and replaces replicas, and refuses requests while the queue is full. Run it
with `serve run soap.serve.ray_app:build_app model=mnist-cnn-dr max_replicas=4`.
"""

import asyncio
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from soap.defence import Defence
from soap.errors import InputError, SoapError
from soap.purifiers import SOAP
from soap.recipes.trained_model import open_model
from soap.serve import Limits
from soap.serve.errors import ERROR_HEADERS, error_response
from soap.serve.picture_api import Prediction
from soap.serve.request_images import decode_image
from soap.shapes import Float, Tensor

LIMITS = Limits()
"""Bytes and pixels of a request; batches and queue are those of `RaySettings`."""


class RaySettings(BaseModel):
    """Settings of the application; `serve run` and Ray's configuration files pass them as text.

    model: a bundled name, or the path of a .safetensors file that every machine can read. purify: False serves the bare
    classifier. cpus, gpus: of one replica. batch_size: images in one batch. gather_s: seconds that the first image of a
    batch waits for others. queue: requests that wait for a replica; further ones get status 503.
    """

    model_config = ConfigDict(extra="forbid")

    model: str
    purify: bool = True
    device: str = "cpu"
    cpus: float = Field(1.0, ge=0)
    gpus: float = Field(0.0, ge=0)
    min_replicas: int = Field(1, ge=1)
    max_replicas: int = Field(1, ge=1)
    batch_size: int = Field(LIMITS.batch_size, ge=1)
    gather_s: float = Field(LIMITS.gather_s, ge=0)
    queue: int = Field(LIMITS.queue, ge=1)


class DefencePrediction(Prediction):
    """Response to an image: the prediction of the defence, and the name of its model."""

    model: str


class DefenceReplica:
    """One replica: a loaded defence. It takes the image formats of `soap serve` and returns its error responses."""

    def __init__(self, settings: RaySettings) -> None:
        from ray import serve

        self.served = open_model(settings.model, device=settings.device)
        model = self.served.model.requires_grad_(False)
        self.defence = Defence(model, SOAP(model) if settings.purify else None)
        batching = serve.batch(max_batch_size=settings.batch_size, batch_wait_timeout_s=settings.gather_s)

        async def predict_batch(images: list[Tensor]) -> list[Tensor]:
            return list(await asyncio.to_thread(self.probabilities, torch.stack(images).to(settings.device)))

        self.predict = batching(predict_batch)

    @torch.no_grad()
    def probabilities(self, x: Float[Tensor, "batch c h w"]) -> Float[Tensor, "batch classes"]:
        """Class probabilities at the purified images, on the CPU."""
        return self.defence(x).softmax(1).cpu()  # type: ignore[no-any-return]

    async def __call__(self, request: Request) -> Response:
        """Predict one image; the body is a PNG, a JPEG or JSON numbers."""
        body, kind = await request.body(), request.headers.get("content-type", "")
        try:
            if len(body) > LIMITS.body:
                raise HTTPException(413, f"the body has {len(body):,} bytes, expected at most {LIMITS.body:,}.")
            x = await asyncio.to_thread(decode_image, body, kind, self.served.model.input_shape, LIMITS, invert=False)
            found: list[float] = (await self.predict(x)).tolist()
        except (HTTPException, SoapError) as error:
            return error_response(error)
        label = found.index(max(found))
        response = DefencePrediction(
            model=self.served.model.name,
            class_number=label,
            name=self.served.classes[label],
            probabilities=[round(value, 6) for value in found],
        )
        return Response(response.model_dump_json(by_alias=True), media_type="application/json")


def build_app(settings: RaySettings) -> Any:
    """The `ray.serve.Application`; pass it to `ray.serve.run`, or name this function in a configuration file."""
    try:
        from ray import serve
    except ImportError as error:
        raise InputError("ray is not installed; run `pip install '.[ray]'` in a clone of soap.") from error
    deployment = serve.deployment(
        name="soap",
        ray_actor_options={"num_cpus": settings.cpus, "num_gpus": settings.gpus},
        autoscaling_config={
            "min_replicas": settings.min_replicas,
            "max_replicas": settings.max_replicas,
            "target_ongoing_requests": settings.batch_size,
        },
        max_ongoing_requests=2 * settings.batch_size,  # one batch runs while the next one fills
        max_queued_requests=settings.queue,
        backpressure_config={"retry_after_s": float(ERROR_HEADERS[503]["Retry-After"])},
        health_check_period_s=1.0,
    )
    return deployment(DefenceReplica).bind(settings)
