"""Every purifier of every bundled model: labels, radii, losses and images as they were recorded."""

import adapter
import cases
import pytest
from compare import check_rows

BY_PRIOR = {*(f"defense-gan/{case}" for case in cases.GAN), *cases.DENOISERS, "pixeldefend"}
BY_CLASSIFIER = sorted({*cases.recorded("purified.npz")} - BY_PRIOR)


def test_every_bundled_model_is_recorded():
    assert {"/".join(case) for case in cases.purifier_cases()} == {*BY_CLASSIFIER}
    assert adapter.priors() == ["autoencoder-mnist", "ddpm-mnist", "defense-gan-mnist"]


@pytest.mark.parametrize("case", BY_CLASSIFIER)
def test_a_purifier(case):
    check_rows(case, cases.purified(*case.split("/")), cases.recorded("purified.npz")[case])


@pytest.mark.parametrize("settings", cases.GAN)
def test_defense_gan(settings):
    case = f"defense-gan/{settings}"
    check_rows(case, cases.defense_gan(settings), cases.recorded("purified.npz")[case])


@pytest.mark.parametrize("purifier", cases.DENOISERS)
def test_a_denoiser(purifier):
    check_rows(purifier, cases.denoised(purifier), cases.recorded("purified.npz")[purifier])


def test_pixeldefend():
    check_rows("pixeldefend", cases.pixel_defend(), cases.recorded("purified.npz")["pixeldefend"])
