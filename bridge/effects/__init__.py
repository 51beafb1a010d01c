"""The net effect of changes on rows, as Arrow tables. No Spark."""
