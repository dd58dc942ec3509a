"""Access control: the token and the Host header."""

import hmac
import ipaddress
from urllib.parse import urlsplit

from starlette.datastructures import Headers

from soap.errors import InputError
from soap.serve.http_errors import RequestError

PUBLIC_PATHS = ("/", "/docs", "/openapi.json", "/healthz")
"""Paths that need no token, besides /static/: a browser cannot send a token before the page has loaded."""

MIN_TOKEN_CHARACTERS = 16


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach `host`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def check_binding(host: str, token: str | None) -> None:
    """Raise if other machines can reach `host` and there is no token, or if the token is short."""
    if token is None and not is_loopback(host):
        raise InputError(
            f"host is {host!r}, which other machines can reach; give a token (--token or $SOAP_TOKEN), "
            "or listen on 127.0.0.1."
        )
    if token is not None and not (len(token) >= MIN_TOKEN_CHARACTERS and token.isascii() and token.isprintable()):
        raise InputError(
            f"the token has {len(token)} characters, expected at least {MIN_TOKEN_CHARACTERS} printable ASCII "
            "characters; make one with `openssl rand -hex 32`."
        )


class AccessControl:
    """Checks the Host header if the service listens on loopback, and the token if one is set.

    The Host check stops web pages of other sites whose name resolves to 127.0.0.1 (DNS rebinding).
    """

    def __init__(self, *, host: str, token: str | None) -> None:
        self.checks_host = is_loopback(host)
        self.token = None if token is None else token.encode()

    def check(self, path: str, headers: Headers) -> None:
        """Raise status 421 for a wrong Host header and 401 for a missing or wrong token."""
        if self.checks_host and not _is_loopback_name(headers.get("host", "")):
            raise RequestError(421, "the Host header names another machine; use the address the service printed.")
        if self.token is None or path in PUBLIC_PATHS or path.startswith("/static/"):
            return
        scheme, _, token = headers.get("authorization", "").partition(" ")
        equal = hmac.compare_digest(token.strip().encode("utf-8", "replace"), self.token)
        if scheme.lower() != "bearer" or not equal:
            raise RequestError(401, "the token is missing or wrong; send the header `Authorization: Bearer TOKEN`.")


def _is_loopback_name(host: str) -> bool:
    try:
        return is_loopback(urlsplit(f"//{host}").hostname or "")
    except ValueError:
        return False
