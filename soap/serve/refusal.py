"""The quick refusal: under overload nearly all requests are refused, and to route each would leave time for none."""

import re
import time
from functools import lru_cache

from soap.serve.door import WORK, asked
from soap.serve.guard import SECURITY_HEADERS, Admission
from soap.serve.problems import RequestError
from soap.serve.service import Service

FIRST = re.compile(rb"POST (/v1/[a-z]+)(?:\?([!-~]*))? HTTP/1\.1\r\n")
LENGTH = re.compile(rb"\r\ncontent-length: ?([0-9]{1,7})\r\n")
HOST = re.compile(rb"\r\nhost: ?([!-~]*)(?=\r\n)", re.IGNORECASE)
TOKEN = re.compile(rb"\r\nauthorization: ?([ -~]*)(?=\r\n)", re.IGNORECASE)
UNUSUAL = (b"transfer-encoding", b"expect", b"close", b"upgrade", b"\r\n ", b"\r\n\t")


class QuickRefusal:
    """Answers bytes that are one whole, plain request for which there is no room.

    All else gets None, and goes the ordinary way: this is no second reader of HTTP. So does who is not admitted: a full
    queue is shortened by one more who asks, and a stranger is not to do that.
    """

    def __init__(self, service: Service, admission: Admission) -> None:
        self.service, self.admission = service, admission

    def __call__(self, data: bytes) -> bytes | None:
        """The refusal as it goes over the wire, or None."""
        began, first = time.perf_counter(), FIRST.match(data)
        route = first[1].decode() if first else ""
        worker = asked(self.service.workers, first[2] or b"") if first and route in WORK else None
        if worker is None or not _whole(data) or not self._admitted(data):
            return None
        refusal = worker.refusal()
        if refusal is None:
            return None
        self.service.metrics.note("POST", route, refusal.status, time.perf_counter() - began)
        return _encoded(refusal.status, refusal.message)

    def _admitted(self, data: bytes) -> bool:
        head = data.partition(b"\r\n\r\n")[0] + b"\r\n"
        host, token = HOST.findall(head), TOKEN.findall(head)
        if len(host) != 1 or len(token) > 1:
            return False
        try:
            self.admission.check_host(host[0].decode("latin-1"))
            self.admission.check_token(token[0].decode("latin-1") if token else "")
        except RequestError:
            return False
        return True


def _whole(data: bytes) -> bool:
    head, _, body = data.partition(b"\r\n\r\n")
    head = head.lower() + b"\r\n"
    length = LENGTH.search(head)
    if length is None or int(length[1]) != len(body) or head.count(b"content-length") != 1:
        return False
    return not any(word in head for word in UNUSUAL)


@lru_cache(64)
def _encoded(status: int, message: str) -> bytes:
    answer = RequestError(status, message).response()
    answer.headers.update(SECURITY_HEADERS)
    lines = [b"HTTP/1.1 503 Service Unavailable", *(b"%b: %b" % pair for pair in answer.raw_headers), b"", b""]
    return b"\r\n".join(lines) + bytes(answer.body)
