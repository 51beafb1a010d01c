"""From committed transactions to the changes of each target, as Arrow tables. No Spark."""
