"""Purifiers: callables from a batch to a purified batch, and the module that puts one before a classifier."""

from soap.purify.defended import Defended
from soap.purify.soap import Purified, Purifier

__all__ = ["Defended", "Purified", "Purifier"]
