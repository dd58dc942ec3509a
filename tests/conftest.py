"""Set-up of every test: shapes checked at run time, the same draws every time, properties without a deadline."""

import os

import jaxtyping
import pytest

# Before anything imports soap: from here on every annotated call of it is checked, shapes included.
jaxtyping.install_import_hook("soap", "shape_checks.checked")

import torch  # noqa: E402
from hypothesis import settings  # noqa: E402

if "PYTEST_XDIST_WORKER" in os.environ:  # the workers share the cores already
    torch.set_num_threads(1)

settings.register_profile("soap", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("soap")


@pytest.fixture
def unchecked_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls reach soap as a user's do, without run-time checks: for tests of its own errors on bad input."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Before a test and its fixtures: what is drawn without a generator is the same every time."""
    torch.manual_seed(0)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device; torch sees none here"))
