"""Which version of each Delta table has everything up to an LSN, and nothing more."""
