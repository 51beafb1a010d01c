"""What Spark tells of changes: the verdicts of row filters, and the rows of conflicts."""
