"""The HTTP service: predictions, attacks and purification for pictures that clients send, batched across clients."""

from soap.serve.app import create_app
from soap.serve.limits import Limits

__all__ = ["Limits", "create_app"]
