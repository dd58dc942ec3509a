"""Our path against a plain one in the same run: how fast, at what cost, how near the floor, and whether they agree.

`purify`, `attack` and `train` each return a `BenchRow`; the command line shows it and keeps it.
"""

from soap.bench.floor import Rates, measure_rates
from soap.bench.row import BenchRow, append, read
from soap.bench.subject import Subject, load_subject
from soap.bench.timing import Spread

__all__ = ["BenchRow", "Rates", "Spread", "Subject", "append", "load_subject", "measure_rates", "read"]
