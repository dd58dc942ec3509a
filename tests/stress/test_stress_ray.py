"""Ray Serve with two replicas: correct responses, a killed replica, ten times too many requests.

ray is not in requirements.lock (it is large), so these tests are skipped unless it is installed:
`pip install '.[ray]'`, then `SOAP_LONG=1 OMP_NUM_THREADS=1 python -m pytest tests/stress/test_stress_ray.py`.
"""

import base64
import importlib.util
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

if importlib.util.find_spec("ray") is None:
    pytest.skip("ray is not installed; it is not in requirements.lock", allow_module_level=True)

from client_load import finish_load, start_load
from counting import amount, count
from raw_http import MARKER, fetch

pytestmark = [pytest.mark.stress, pytest.mark.skipif(sys.platform != "linux", reason="reads /proc, sends signals")]

REPLICAS = 2
READY_S = 120.0
RECOVERED = 0.5
"""Share of the rate of 32 clients that must be reached again after an overload."""

LOST_S = 1.0
"""Seconds after a kill in which a request may still be sent to the killed replica, and get status 500."""

RUN = """
import json, sys
import ray
from ray import serve
from soap.serve.ray_app import RaySettings, build_app
settings, port, folder = json.loads(sys.argv[1])
ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=2**27,
         _temp_dir=folder)
serve.start(http_options={"host": "127.0.0.1", "port": port, "request_timeout_s": 60})
serve.run(build_app(RaySettings(**settings)), route_prefix="/v1/purify")
print("ready", flush=True)
sys.stdin.read()
serve.shutdown()
ray.shutdown()
"""

ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # Ray's own ports listen on 127.0.0.1
    "RAY_AUTH_TOKEN": secrets.token_hex(32),  # otherwise Ray writes one to the home folder
}


@dataclass(frozen=True, kw_only=True)
class RayService:
    """A running application of two replicas."""

    address: str
    process: subprocess.Popen[str]

    def replicas(self) -> list[int]:
        """Process ids of the replicas."""
        found, waiting = [], [self.process.pid]
        while waiting:
            for task in Path(f"/proc/{waiting.pop()}/task").glob("*/children"):
                try:
                    children = [int(pid) for pid in task.read_text().split()]
                    found += [pid for pid in children if "ServeReplica" in Path(f"/proc/{pid}/cmdline").read_text()]
                except OSError:  # it has ended
                    continue
                waiting += children
        return found

    def recovered(self, lost: int) -> bool:
        """Whether all replicas run, without the lost one."""
        found = self.replicas()
        return len(found) == REPLICAS and lost not in found


@pytest.fixture(scope="module")
def ray_service() -> Iterator[RayService]:
    from expected import MODEL

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    folder = Path(tempfile.mkdtemp(prefix="ray-"))  # short: paths of Unix sockets are limited
    settings = {"model": MODEL, "min_replicas": REPLICAS, "max_replicas": REPLICAS}
    arguments = json.dumps([settings, port, str(folder)])
    with subprocess.Popen(
        [sys.executable, "-c", RUN, arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, **ENVIRONMENT},
    ) as process:  # fmt: skip
        try:
            assert process.stdout.readline() == "ready\n"
            yield RayService(address=f"http://127.0.0.1:{port}", process=process)
            logs = [path for path in folder.rglob("*") if path.is_file() and MARKER.encode() in path.read_bytes()]
            assert logs == []
        finally:
            process.stdin.close()
            process.wait(READY_S)
            shutil.rmtree(folder)


def load(service, digits, seconds, **orders):
    return start_load(service.address, "purify", seconds, [digit.picture for digit in digits], **orders)


def problem(record, digits):
    """What is wrong with a response: the prediction must be that of the library; the input is not in it."""
    if record["status"] == 503:
        return None if record["retry"] else "503 without Retry-After"
    if record["status"] != 200:
        return f"status {record['status']}"
    digit = digits[record["picture"]]
    return digit.problem("purify", {**record["result"], "input": base64.b64encode(digit.picture)})


def test_responses_equal_those_of_the_library(ray_service, digits):
    for digit in digits:
        found = fetch(ray_service.address, "/v1/purify", digit.picture)
        assert found.status == 200
        assert problem({"status": 200, "picture": digits.index(digit), "result": found.content}, digits) is None
    bad = fetch(ray_service.address, "/v1/purify", b"no picture")
    assert bad.status == 415
    assert bad.problem() is None


def test_killed_replica_is_replaced_and_no_result_is_wrong(ray_service, digits):
    """Requests that the replica was processing when it was killed get status 500: Ray does not repeat them."""
    failures, trials, lost, seconds = [], 0, 0, []
    for _ in range(amount(1, 10)):
        clients = load(ray_service, digits, amount(6, 15), clients=16)
        time.sleep(3)
        victim = ray_service.replicas()[0]
        os.kill(victim, signal.SIGKILL)
        start = time.monotonic()
        while not ray_service.recovered(victim):
            assert time.monotonic() < start + READY_S, "the replica was not replaced"
            time.sleep(0.05)
        seconds.append(time.monotonic() - start)
        during, after = finish_load(clients), finish_load(load(ray_service, digits, amount(2, 5), clients=16))
        for record in (*during["records"], *after["records"]):
            trials += 1
            if record["status"] == 500 and record["start"] < start + LOST_S:
                lost += 1
            elif found := problem(record, digits):
                failures.append(found)
        failures += [] if after["statuses"].get("200") else ["no result afterwards"]
    measured = {"kills": len(seconds), "status 500": lost, "s until the new process, at most": max(seconds)}
    count("Ray Serve, killed replica: no wrong result, and it is replaced", trials, failures, measured)


def test_overload_is_refused_with_503(ray_service, digits):
    def rate_of_32_clients():
        found = finish_load(load(ray_service, digits, amount(3, 20), clients=32))
        assert set(found["statuses"]) == {"200"}
        return found["statuses"]["200"] / found["took"]

    finish_load(load(ray_service, digits, amount(1, 5), clients=32))  # warm-up
    before = rate_of_32_clients()
    found = finish_load(load(ray_service, digits, amount(5, 60), rate=10 * before))
    after = rate_of_32_clients()
    failures = [why for record in found["records"] if (why := problem(record, digits))]
    failures += [] if after >= RECOVERED * before else [f"{after:.0f} requests/s afterwards, before {before:.0f}"]
    accepted = [record["seconds"] for record in found["records"] if record["status"] == 200]
    refused = sum(record["status"] == 503 for record in found["records"])
    assert accepted
    assert refused
    measured = {
        "requests/s offered": len(found["records"]) / found["took"],
        "requests/s of 32 clients before": before,
        "requests/s of 32 clients afterwards": after,
        "requests/s accepted": len(accepted) / found["took"],
        "status 503": refused,
        "s, p99 accepted": sorted(accepted)[int(0.99 * len(accepted))],
        "not sent": found["unsent"],
    }
    count("Ray Serve, 10 x overload: a result, or 503 with Retry-After", len(found["records"]), failures, measured)
