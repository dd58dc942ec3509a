"""What the stress tests share: the truth, and a service whose log is read when all is done."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from counting import LONG
from served import Served, served


@pytest.fixture(scope="session")
def digits() -> list[Any]:
    """What the library says of some digits; see `truth`."""
    from truth import truths  # needs the extra 'serve', without which these tests are skipped

    return truths()


@pytest.fixture(scope="module")
def service(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """With its own patience in the long version, and with the module's PATIENCE, if it has one, in the short one."""
    log: Path = tmp_path_factory.mktemp("service") / "log"
    with served(log, seconds=None if LONG else getattr(request.module, "PATIENCE", None)) as one:
        yield one
    assert one.leaks() == []
    assert one.process.returncode == 0
