"""How long and how much a client may send: every request has a deadline, and its bytes are counted as they come."""

import asyncio
import time

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from soap.serve.limits import Limits
from soap.serve.problems import RequestError, busy

DEADLINE = "soap.deadline"
"""Where a request's scope holds the time, by the monotonic clock, after which nobody waits for it."""


class Patience:
    """Bounds every request by `limits`: seconds in all, bytes of its own, and bytes of all together."""

    def __init__(self, app: ASGIApp, *, limits: Limits) -> None:
        self.app = app
        self.limits = limits
        self.held = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on with a receive that counts; give up at the deadline."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        scope[DEADLINE] = time.monotonic() + self.limits.seconds
        self._check_announced(Headers(scope=scope).get("content-length", "0"))
        own, whole, started = 0, False, False

        async def counted() -> Message:
            nonlocal own, whole
            message = await receive()
            if message["type"] == "http.request":
                size = len(message.get("body", b""))
                own, self.held = own + size, self.held + size
                whole = not message.get("more_body", False)
                if own > self.limits.body:
                    raise self._too_large(f"more than {self.limits.body:,}")
                if self.held > self.limits.bodies:
                    raise busy("too many large requests are being read")
            return message

        async def noted(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            async with asyncio.timeout(self.limits.seconds):
                await self.app(scope, counted, noted)
        except TimeoutError:
            if started:  # the client does not read its answer: the server closes the connection
                return
            if whole:
                raise busy(f"the request took longer than {self.limits.seconds:g} s") from None
            raise RequestError(408, f"the body did not arrive in {self.limits.seconds:g} s; send it faster.") from None
        finally:
            self.held -= own

    def _check_announced(self, length: str) -> None:
        if length.isdecimal() and int(length[:20]) > self.limits.body:
            raise self._too_large(f"{length[:20]}")

    def _too_large(self, size: str) -> RequestError:
        return RequestError(413, f"the body is {size} bytes, want at most {self.limits.body:,}; send a smaller one.")
