"""A published table's new definition, and what it makes of the Delta table's columns."""
