"""Every table and figure of the paper as data, with its printed numbers, and what to run for each."""

from soap.paper.wanted import Wanted

__all__ = ["Wanted"]
