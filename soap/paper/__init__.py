"""Every table and figure of the paper as data, with its printed numbers, and what to run for each."""

from soap.paper.architectures import Listing
from soap.paper.black_box import BlackBox
from soap.paper.rows import committed_rows
from soap.paper.tables import TABLES, Cell, Table, explanation
from soap.paper.wanted import Wanted

__all__ = ["TABLES", "BlackBox", "Cell", "Listing", "Table", "Wanted", "committed_rows", "explanation"]
