"""The service in this process and behind a real server, its first model, and digits."""

from collections.abc import Iterator
from typing import Any

import pytest
from browsing import Visit, chromium, visited
from small_service import HERE, MODELS, running

import soap


@pytest.fixture(scope="session")
def digits() -> soap.data.Dataset:
    """Sixteen digits: 0, 1, ..., 9, 0, ..., 5."""
    return soap.data.load("mnist-mini").take(16)


@pytest.fixture(scope="session")
def model() -> soap.JointModel:
    """The first served model, loaded for itself."""
    return soap.load(MODELS[0])


@pytest.fixture(scope="session")
def client() -> Iterator[Any]:
    """A client of the service in this process."""
    from fastapi.testclient import TestClient

    from soap.serve import create_app

    with TestClient(create_app(MODELS), base_url=HERE) as made:
        yield made


@pytest.fixture(scope="session")
def live() -> Iterator[str]:
    """The address of the service behind a real server."""
    from soap.serve import create_app

    with running(create_app(MODELS)) as address:
        yield address


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A browser; closed after each module, for its event loop must not meet another's."""
    with chromium() as opened:
        yield opened


@pytest.fixture
def visit(browser: Any, live: str) -> Iterator[Visit]:
    """The page, not opened yet, in a browser that asks for no motion."""
    with visited(browser, live) as made:
        yield made
