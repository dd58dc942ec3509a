"""Requests with a false length or a malformed structure: name -> bytes.

Some hide a second request for /v1/models behind a false length. A response to it means that it was smuggled in.
"""

from raw_http import MARKED_HEADERS

SMUGGLED = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n" + "\r\n".join(MARKED_HEADERS).encode() + b"\r\n\r\n"


def post(*headers: str, body: bytes = b"", first: str = "POST /v1/predict HTTP/1.1") -> bytes:
    lines = [first, "Host: localhost", *MARKED_HEADERS, "Content-Type: image/png", *headers, "", ""]
    return "\r\n".join(lines).encode("latin-1") + body


def chunked(body: bytes, *headers: str) -> bytes:
    return post("Transfer-Encoding: chunked", *headers, body=body)


HIDDEN = b"0\r\n\r\n" + SMUGGLED
MALFORMED: dict[str, bytes] = {
    "Content-Length against Transfer-Encoding": chunked(HIDDEN, "Content-Length: 5"),
    "Transfer-Encoding against Content-Length": post("Content-Length: 5", "Transfer-Encoding: chunked", body=HIDDEN),
    "Content-Length: 4 and chunks": chunked(b"5c\r\n" + SMUGGLED + b"0\r\n\r\n", "Content-Length: 4"),
    "two lengths": post("Content-Length: 0", f"Content-Length: {len(SMUGGLED)}", body=SMUGGLED),
    "two lengths in one": post(f"Content-Length: 0, {len(SMUGGLED)}", body=SMUGGLED),
    "a length with a sign": post("Content-Length: +5", body=b"12345" + SMUGGLED),
    "a negative length": post("Content-Length: -5", body=SMUGGLED),
    "a length in hex": post("Content-Length: 0x5", body=b"12345" + SMUGGLED),
    "a length of many digits": post(f"Content-Length: {'9' * 4000}", body=SMUGGLED),
    "a length with a space inside": post("Content-Length: 1 0", body=SMUGGLED),
    "no chunks after all": post("Transfer-Encoding: xchunked", body=HIDDEN),
    "chunks twice": post("Transfer-Encoding: chunked", "Transfer-Encoding: chunked", body=HIDDEN),
    "chunks, then as it is": post("Transfer-Encoding: chunked, identity", body=HIDDEN),
    "gzip, then chunks": post("Transfer-Encoding: gzip, chunked", body=HIDDEN),
    "a space before the colon": post("Transfer-Encoding : chunked", body=HIDDEN),
    "a tab before the name": post("\tTransfer-Encoding: chunked", body=HIDDEN),
    "a vertical tab in the value": post("Transfer-Encoding: \x0bchunked", body=HIDDEN),
    "a header over two lines": post("Transfer-Encoding:\r\n chunked", body=b"0\r\n\r\n"),
    "chunks in HTTP/1.0": post("Transfer-Encoding: chunked", body=HIDDEN, first="POST /v1/predict HTTP/1.0"),
    "a chunk size that is no number": chunked(b"zz\r\nabc\r\n" + HIDDEN),
    "a negative chunk": chunked(b"-1\r\nabc\r\n" + HIDDEN),
    "a chunk size with 0x": chunked(b"0x3\r\nabc\r\n" + HIDDEN),
    "a chunk size of many digits": chunked(b"f" * 40 + b"\r\nabc\r\n" + HIDDEN),
    "a chunk smaller than its contents": chunked(b"3\r\nabcdef\r\n" + HIDDEN),
    "a chunk without its end": chunked(b"3\r\nabc" + HIDDEN),
    "line feeds alone": chunked(b"3\nabc\n" + HIDDEN.replace(b"\r\n", b"\n", 2)),
    "a chunk extension of 64 KB": chunked(b"3;" + b"x" * 65_536 + b"\r\nabc\r\n" + HIDDEN),
    "trailers of 64 KB": chunked(b"3\r\nabc\r\n0\r\n" + b"X-A: b\r\n" * 8000 + b"\r\n"),
    "trailers without a colon": chunked(b"3\r\nabc\r\n0\r\n" + b"nonsense\r\n\r\n" + SMUGGLED),
    "10,000 chunks of one byte, without end": chunked(b"1\r\nx\r\n" * 30_000),
    "headers of 64 KB": post(*(f"X-{n}: {'y' * 60}" for n in range(1000))),
    "a header with a nul": post("X-A: \0"),
    "a header without a name": post(": x"),
    "no host": b"GET /healthz HTTP/1.1\r\n\r\n",
    "two hosts": b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n",
    "no version": b"GET /healthz\r\nHost: localhost\r\n\r\n",
    "version 9": b"GET /healthz HTTP/9.9\r\nHost: localhost\r\n\r\n",
    "HTTP/2 without asking": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "TLS": bytes.fromhex("160301020001000001fc0303") + b"\0" * 200,
    "a path with a nul": b"GET /health\0z HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "CONNECT": b"CONNECT evil.example:443 HTTP/1.1\r\nHost: evil.example:443\r\n\r\n",
    "websocket": b"GET /healthz HTTP/1.1\r\nHost: evil.example\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
    "a chunk larger than its contents": chunked(b"ffff\r\nabc\r\n" + HIDDEN),
    "a length larger than the body": post("Content-Length: 1000", body=SMUGGLED),
    "chunks without an end": chunked(b"3\r\nabc\r\n"),
    "half a header": b"POST /v1/predict HTTP/1.1\r\nHost: loc",
}
UNFINISHED = {
    "a chunk larger than its contents", "a length larger than the body", "chunks without an end", "half a header",
}  # fmt: skip
"""Announce more than they send; the client then closes its sending side."""

TRAILERS = b"0\r\nContent-Length: 5\r\nAuthorization: Bearer x\r\nTransfer-Encoding: chunked\r\n\r\n"
