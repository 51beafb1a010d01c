"""Transactions that were skipped: kept, shown, and applied later."""
