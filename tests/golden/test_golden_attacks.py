"""Every attack: labels after it and norms as they were recorded."""

import cases
import pytest
from compare import check_rows


def test_every_attack_is_recorded():
    assert {"/".join(case) for case in cases.attack_cases()} == {*cases.recorded("attacked.npz")}


@pytest.mark.parametrize("case", sorted(cases.recorded("attacked.npz")))
def test_an_attack(case):
    check_rows(case, cases.under_attack(*case.split("/")), cases.recorded("attacked.npz")[case])
