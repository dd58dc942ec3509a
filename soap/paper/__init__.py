"""The reproduction of the paper: printed numbers, tables, figures, claims, jobs and pages behind `soap reproduce`.

No other package imports this one, except `soap.cli` to register its command.
"""
