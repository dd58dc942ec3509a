"""Recipes are read once a module."""

from paper_rows import recipes_read_once

__all__ = ["recipes_read_once"]
