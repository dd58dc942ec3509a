"""What `import soap` offers, and nothing by accident."""

import pytest

import soap

PUBLIC = {
    "Defence", "FileError", "InputError", "JointModel", "Purified", "SOAP", "SoapError", "attacks", "auxiliary",
    "data", "evaluation", "fit", "load", "load_prior", "models", "purifiers", "recipes", "training", "wrap", "zoo",
}  # fmt: skip


def test_the_front_door():
    assert set(soap.__all__) == PUBLIC
    assert all(getattr(soap, name) is not None for name in PUBLIC)


ROOMS = ["attacks", "auxiliary", "data", "evaluation", "models", "purifiers", "recipes", "training"]


@pytest.mark.parametrize("room", ROOMS)
def test_every_room_says_what_it_offers_and_documents_it(room):
    module = getattr(soap, room)
    assert module.__doc__
    for name in module.__all__:
        thing = getattr(module, name)
        if callable(thing) and getattr(thing, "__module__", "").startswith("soap"):
            assert thing.__doc__, f"soap.{room}.{name} has no docstring"
