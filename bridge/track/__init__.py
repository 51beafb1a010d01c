"""Where to go on: positions, what is confirmed, what is skipped, and transactions that wait on disk."""
