"""The imitation of a purifier is trained for few steps: tests/gradient_rules/test_surrogate.py tests its quality."""

from collections.abc import Iterator

import pytest

from soap.gradient_rules import surrogate


@pytest.fixture(autouse=True, scope="module")
def short_imitation() -> Iterator[None]:
    """Limit the training that the attack `surrogate` makes for each purifier; by default it takes 5 s and more."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(surrogate, "MAX_STEPS", 30)
        yield
