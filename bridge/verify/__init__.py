"""`pgbridge verify`: compares published tables with their Delta tables, as of one LSN; see `verification`."""
