"""Positions: what is durable, confirmed and skipped, and the transactions that wait on disk."""
