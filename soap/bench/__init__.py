"""Benchmarks: our implementation against a reference in the same run, with passes, memory, floor and agreement.

`bench_purify`, `bench_attack` and `bench_train` each return a `BenchRow`; `soap bench` prints and stores it.
"""

from soap.bench.floor import Rates, measure_rates
from soap.bench.inputs import BenchModel, load_bench_model
from soap.bench.results import BenchRow, append, read
from soap.bench.timing import Spread

__all__ = ["BenchModel", "BenchRow", "Rates", "Spread", "append", "load_bench_model", "measure_rates", "read"]
