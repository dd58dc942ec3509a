"""Setup of every test: run-time shape checks, fixed random seed, no fsync, hypothesis without a deadline."""

import os
from collections.abc import Iterator

import jaxtyping
import pytest
import shape_checks

# Before soap is imported: from here on every annotated call is checked, including tensor shapes.
shape_checks.install()

import torch  # noqa: E402
from hypothesis import settings  # noqa: E402

if "PYTEST_XDIST_WORKER" in os.environ:  # the xdist workers already use all cores
    torch.set_num_threads(1)

SLOW_FILES = {
    "test_tutorials.py", "test_kills.py", "test_launched_processes.py", "test_two_processes.py", "test_headline.py",
    "test_golden_attacks.py", "test_golden_suite.py", "test_export_models.py", "test_stress_load.py",
}  # fmt: skip
"""They run first, so that at the end no process of `pytest -n` waits for one of them."""

settings.register_profile("soap", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("soap")


@pytest.fixture
def unchecked_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable the run-time shape checks, as for a user: for tests of the library's own errors on bad input."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


@pytest.fixture(autouse=True, scope="module")
def without_fsync(request: pytest.FixtureRequest) -> Iterator[None]:
    """Leave out fsync except in tests/chaos: it takes milliseconds, and no power fails while the tests run."""
    with pytest.MonkeyPatch.context() as patch:
        if "chaos" not in request.path.parts:
            patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Seed torch before each test and its fixtures."""
    torch.manual_seed(0)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.name not in SLOW_FILES)
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device; torch sees none here"))
