"""Finds the version of each Delta table that has everything up to an LSN, and nothing more."""
