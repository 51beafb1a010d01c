"""The Delta table of a subscribed table: its columns and their types. No Spark."""
