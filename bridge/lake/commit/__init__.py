"""Commits a batch's changes to a Delta table: appends, rewrites, MERGEs; and takes them back."""
