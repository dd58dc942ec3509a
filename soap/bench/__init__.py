"""Benchmarks: our implementation against a reference in the same run, with passes, memory, floor and agreement.

`bench_purify`, `bench_attack` and `bench_train` each return a row, a dictionary of JSON values that `soap bench` prints
and stores.
"""

from soap.bench.results import BenchRow, append, read

__all__ = ["BenchRow", "append", "read"]
