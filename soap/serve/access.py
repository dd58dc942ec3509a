"""Who may ask: the token, the Host header, and what browsers are told. Plain ASGI, before any route."""

import hmac
import ipaddress
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from soap.errors import InputError
from soap.serve.problems import RequestError

SECURITY_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; script-src 'self' 'wasm-unsafe-eval'; img-src 'self' data: blob:; "
    "object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""On every answer. Pictures come as data: addresses; nothing may be loaded from anywhere else. WebAssembly may be
compiled, for networks that run in the browser alone; text may not become script."""

OPEN = ("/", "/docs", "/openapi.json", "/healthz")
"""Routes without a token, and what lies in /static/: a browser cannot send one before the page asks for it."""

SHORTEST = 16
"""Characters of a token."""


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach `host`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def check_binding(host: str, token: str | None) -> None:
    """A token is required to listen anywhere but on loopback, and must not be easy to guess."""
    if token is None and not is_loopback(host):
        raise InputError(
            f"host is {host!r}, which other machines can reach; give a token (--token or $SOAP_TOKEN), "
            "or listen on 127.0.0.1."
        )
    if token is not None and not (len(token) >= SHORTEST and token.isascii() and token.isprintable()):
        raise InputError(
            f"the token has {len(token)} characters, want at least {SHORTEST}, printable and ASCII; "
            "make one with `openssl rand -hex 32`."
        )


class Admission:
    """Who may ask for work: whose Host is this machine (on loopback), and whose token is right (where one is set).

    The first keeps out pages of other sites that have their name lead to 127.0.0.1 (DNS rebinding).
    """

    def __init__(self, *, host: str, token: str | None) -> None:
        self.checks_host = is_loopback(host)
        self.token = None if token is None else token.encode()

    def check_host(self, host: str) -> None:
        """Refuse a Host header that names another machine."""
        if self.checks_host and not _names_loopback(host):
            raise RequestError(421, "the Host header names another machine; use the address the service printed.")

    def check_token(self, authorization: str) -> None:
        """Refuse an Authorization header without the token."""
        if self.token is None:
            return
        scheme, _, given = authorization.partition(" ")
        right = hmac.compare_digest(given.strip().encode("utf-8", "replace"), self.token)
        if scheme.lower() != "bearer" or not right:
            raise RequestError(401, "the token is missing or wrong; send the header `Authorization: Bearer TOKEN`.")


class Guard:
    """Lets a request through if its length is told in one way and who asks is admitted."""

    def __init__(self, app: ASGIApp, *, admission: Admission) -> None:
        self.app, self.admission = app, admission

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse, or pass on."""
        if scope["type"] == "http":
            headers = Headers(scope=scope)
            if "transfer-encoding" in headers and "content-length" in headers:  # a proxy may believe the other
                raise RequestError(400, "the request has both Content-Length and Transfer-Encoding; send one of them.")
            self.admission.check_host(headers.get("host", ""))
            path = scope["path"]
            if path not in OPEN and not path.startswith("/static/"):
                self.admission.check_token(headers.get("authorization", ""))
        await self.app(scope, receive, send)


class SecurityHeaders:
    """Adds `SECURITY_HEADERS` to every answer."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on, with headers."""

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await self.app(scope, receive, with_headers)


def _names_loopback(host: str) -> bool:
    try:
        return is_loopback(urlsplit(f"//{host}").hostname or "")
    except ValueError:
        return False
