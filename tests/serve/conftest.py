"""Fixtures: the service in this process and in its own processes, its first model, and digits."""

from collections.abc import Iterator
from typing import Any

import pytest
from browsing import Visit, chromium, visited
from service_process import service_process
from small_service import BASE_URL, MODELS

import soap


@pytest.fixture(scope="session")
def digits() -> soap.data.Dataset:
    """Sixteen digits: 0, 1, ..., 9, 0, ..., 5."""
    return soap.data.load("mnist-mini").take(16)


@pytest.fixture(scope="session")
def model() -> soap.JointModel:
    """The first served model, loaded a second time."""
    return soap.load(MODELS[0])


@pytest.fixture(scope="session")
def client() -> Iterator[Any]:
    """A client of the application in this process."""
    from fastapi.testclient import TestClient

    from soap.serve import create_app

    with TestClient(create_app(MODELS), base_url=BASE_URL) as made:
        yield made


@pytest.fixture(scope="session")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a real service."""
    with service_process(tmp_path_factory.mktemp("service") / "log", models=MODELS) as service:
        yield service.address


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A browser; closed after each module, since its event loop conflicts with others."""
    with chromium() as opened:
        yield opened


@pytest.fixture
def visit(browser: Any, live: str) -> Iterator[Visit]:
    """The page, not opened yet, in a browser that asks for reduced motion."""
    with visited(browser, live) as made:
        yield made
