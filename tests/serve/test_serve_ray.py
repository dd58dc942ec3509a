"""The Ray Serve application without Ray; `tests/stress/test_stress_ray.py` tests it with Ray."""

import sys

import pytest
from pydantic import ValidationError

from soap.errors import InputError
from soap.serve.ray_app import RaySettings, build_app


def test_without_ray_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match=r"pip install '\.\[ray\]'"):
        build_app(RaySettings(model="mnist-cnn-dr"))


def test_settings_are_read_from_text_and_checked():
    """`serve run ... name=value` passes text."""
    assert RaySettings.model_validate({"model": "m", "purify": "false", "max_replicas": "4"}).max_replicas == 4
    with pytest.raises(ValidationError, match="replicas"):
        RaySettings.model_validate({"model": "m", "replicas": "4"})
