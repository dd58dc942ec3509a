"""Fixtures of the stress tests: digits with expected results, and a real service whose log is checked at the end."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from counting import LONG
from raw_http import MARKER, TOKEN
from service_process import ServiceProcess, service_process


@pytest.fixture(scope="session")
def digits() -> list[Any]:
    """Digits with the library's results; see `expected`."""
    from expected import expected_digits  # needs the extra 'serve'; without it these tests are skipped

    return expected_digits()


@pytest.fixture(scope="module")
def service(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    """A service with default limits; in short runs with the module's TIMEOUT_S, if it has one."""
    from expected import MODEL

    log: Path = tmp_path_factory.mktemp("service") / "log"
    timeout = None if LONG else getattr(request.module, "TIMEOUT_S", None)
    limits = {} if timeout is None else {"timeout_s": timeout}
    with service_process(log, models=[MODEL], token=TOKEN, limits=limits) as one:
        yield one
    assert one.log_leaks(MARKER) == []
    assert one.process.returncode == 0
