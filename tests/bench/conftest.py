"""The fixture `run` for `soap bench`."""

from command_line import run

__all__ = ["run"]
