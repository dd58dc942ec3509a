"""Figures of the page of a run."""
