"""The figures of a run's page, one idea a file."""
