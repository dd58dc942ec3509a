"""One client's connection: HTTP/1.1 with an end to everyone's patience, and answers that reach who is answered."""

import asyncio
import socket
import struct
from contextlib import suppress
from functools import partial
from typing import Any

import h11
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from soap.serve.guard import SECURITY_HEADERS
from soap.serve.problems import RequestError, busy

PIECE = 64 * 1024
"""Bytes read at a time: a body in chunks of one byte each takes a tenth of a second to read so many."""

DENSE = 2
"""A chunked body that is longer on the wire than so many times its contents, and long, is sent to waste time."""

LAST_LOOK = 0.1
"""Seconds that an idle connection stays once the service stops: a request may lie in its buffer."""


class Connection(H11Protocol):
    """uvicorn's HTTP/1.1, which by itself waits without end for headers, for the rest of a refused body, and for a
    client that does not read; forgets what it has not read when it is told to stop; and cuts off its own refusals.

    patience: seconds for the headers, for the rest of a body whose request is answered, and for the last bytes of a
    connection that is closed. clients: open connections; one beyond is told that the service is busy.
    """

    patience = 10.0
    clients = 512
    _timer: asyncio.TimerHandle | None = None
    _stopping = False
    _wire = _contents = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start to wait for headers; refuse what is too much."""
        with suppress(AttributeError):  # asyncio's own is 256 KiB; other event loops have none to set
            transport.max_size = PIECE  # type: ignore[attr-defined]
        super().connection_made(_Outgoing(transport, self))  # type: ignore[arg-type]
        if len(self.connections) > 3 * self.clients // 2:  # there are only so many files a process may open
            transport.abort()
        elif len(self.connections) > self.clients:
            self.app = partial(_crowded, self.app)
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Pass on, and see what there is to wait for."""
        if self.transport.is_closing():
            return
        if self._is_idle() and (answer := self.refused(data)) is not None:
            self._stop_waiting()
            self._unset_keepalive_if_required()
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )
            self.transport.write(answer)
            return
        before = self.cycle
        held = 0 if before is None else len(before.body)
        super().data_received(data)
        if self.cycle is before and before is not None:
            self._look_for_waste(len(data), len(before.body) - held)
        else:
            self._wire = self._contents = 0
        if self._stopping and self.cycle is not None:
            self.cycle.keep_alive = False
        self._look_at_the_clock()

    def refused(self, data: bytes) -> bytes | None:
        """The answer to a request that is refused as it comes; None for one that is to be read."""
        return None

    def on_response_complete(self) -> None:
        """Give the client only so long to send the rest of what is answered already."""
        super().on_response_complete()
        self._look_at_the_clock()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP, in the one format; or just hang up where an answer is under way."""
        if self.cycle is not None and not self.cycle.response_complete:  # who reads the body must not answer too
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.close()
            return
        answer = RequestError(400, "this is no valid HTTP/1.1 request; check its headers and its length.").response()
        headers = [*answer.raw_headers, *((n.lower().encode(), v.encode()) for n, v in SECURITY_HEADERS.items())]
        for event in (
            h11.Response(status_code=400, headers=headers, reason=b"Bad Request"),
            h11.Data(data=bytes(answer.body)),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def shutdown(self) -> None:
        """The service stops: answer what has arrived, then close."""
        self._stopping = True
        if self.cycle is None or self.cycle.response_complete:
            self.loop.call_later(LAST_LOOK, self._leave)
        else:
            self.cycle.keep_alive = False

    def pause_writing(self) -> None:
        """The client does not read: uvicorn would wait for it without end."""
        super().pause_writing()
        self._wait()

    def resume_writing(self) -> None:
        """It reads again."""
        super().resume_writing()
        if not self.transport.is_closing():
            self._stop_waiting()
            self._look_at_the_clock()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self._stop_waiting()
        super().connection_lost(exc)

    def reads_all(self) -> bool:
        """Whether the client has sent nothing but whole requests."""
        whole = self.conn.their_state in (h11.IDLE, h11.DONE, h11.MUST_CLOSE, h11.CLOSED)
        return whole and not self.conn.trailing_data[0]

    def wait_to_close(self) -> None:
        """Hang up on a client that does not take its last bytes."""
        self._stop_waiting()
        self._wait()

    def _is_idle(self) -> bool:
        """Whether a request may begin, and its answer be sent."""
        begins = self.conn.their_state is h11.IDLE and not self.conn.trailing_data[0]
        return begins and not self.flow.write_paused and not self._stopping

    def _leave(self) -> None:
        if not self.transport.is_closing() and (self.cycle is None or self.cycle.response_complete):
            self.transport.close()

    def _look_for_waste(self, wire: int, contents: int) -> None:
        """Hang up on chunks of next to nothing: each costs as much as a large one."""
        if self.conn.their_state is h11.SEND_BODY and any(name == b"transfer-encoding" for name, _ in self.headers):
            self._wire, self._contents = self._wire + wire, self._contents + contents
            if self._wire > PIECE and self._wire > DENSE * self._contents:
                self.send_400_response("")

    def _look_at_the_clock(self) -> None:
        """Wait while headers are incomplete, or the rest of a body is, whose request is answered.

        A body that is being read is bounded by the application's own deadline.
        """
        theirs = self.conn.their_state
        answered = self.cycle is not None and self.cycle.response_complete
        if self.transport.is_closing() or self.flow.write_paused:
            return
        if (theirs is h11.SEND_BODY and answered) or (theirs is h11.IDLE and self.conn.trailing_data[0]):
            self._wait()
        elif theirs is not h11.IDLE or answered:
            self._stop_waiting()

    def _wait(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(self.patience, self._hang_up)

    def _hang_up(self) -> None:
        if self.transport.is_closing() or self.flow.write_paused:
            # The system would go on offering what the client does not take: forget it.
            open_socket = self.transport.get_extra_info("socket")
            open_socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class _Outgoing:
    """A transport that sends an answer in one piece, closes as HTTP asks (RFC 9112, 9.6), and within patience.

    Head and body are written one after the other; sent so, each costs the system and the client a wake-up.

    A socket that is closed with something unread resets the connection, and the client may lose the answer that says
    why: so such a one is closed for writing alone, and what still comes is thrown away. One whose client does not read
    its answer would otherwise stay for ever.
    """

    def __init__(self, transport: asyncio.Transport, connection: Connection) -> None:
        self._transport, self._connection = transport, connection
        self._closed = False
        self._pieces: list[bytes] = []

    def write(self, data: bytes) -> None:
        """Send once all that is written in one go is there."""
        if not self._pieces:
            self._connection.loop.call_soon(self._send)
        self._pieces.append(data)

    def _send(self) -> None:
        pieces, self._pieces = self._pieces, []
        if pieces and not self._transport.is_closing():
            self._transport.write(b"".join(pieces))

    def close(self) -> None:
        """Write what is left, and close."""
        if self.is_closing():
            return
        self._closed = True
        self._connection.wait_to_close()
        self._send()
        if self._connection.reads_all() or not self._transport.can_write_eof():
            self._transport.close()
        else:
            try:
                self._transport.write_eof()
                self._transport.resume_reading()
            except OSError:  # the client has gone already
                self._transport.abort()

    def is_closing(self) -> bool:
        """Whether nothing more will be written."""
        return self._closed or self._transport.is_closing()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


async def _crowded(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    """Too many connections are open: what one too many is told, unless it asks whether all is well."""
    if scope["path"] == "/healthz":
        await app(scope, receive, send)
        return
    answer = busy("too many connections are open").response()
    answer.headers.update({**SECURITY_HEADERS, "Connection": "close"})
    await answer(scope, receive, send)
