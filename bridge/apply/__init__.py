"""From transactions to Delta commits."""
