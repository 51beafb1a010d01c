"""A Delta table's log: its history, its stamps, and when a commit is on disk."""
