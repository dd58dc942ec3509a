"""The run-time type checker of the tests: beartype, which accepts an int for a float parameter (PEP 484)."""

from beartype import BeartypeConf, beartype

checked = beartype(conf=BeartypeConf(is_pep484_tower=True))
