"""A subscription's Delta table: its columns, and which types hold which values. No Spark."""
