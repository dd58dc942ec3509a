"""HTTP service: predicts, attacks and purifies images that clients send, in batches across clients."""

from typing import Any

from soap.serve.limits import Limits

__all__ = ["Limits", "create_app"]


def __getattr__(name: str) -> Any:
    """Import `create_app` on first use: it needs the extra 'serve', the command line does not."""
    if name == "create_app":
        from soap.serve.app import create_app

        return create_app
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
