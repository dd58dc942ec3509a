"""Random numbers that belong to a row, by the name attacks know them."""

from soap.draws import streams, uniform

__all__ = ["streams", "uniform"]
