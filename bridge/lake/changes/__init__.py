"""A batch's changes as Spark DataFrames: row filters, values that no column holds, the net effect."""
