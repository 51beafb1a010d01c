"""The initial copy, and a subscription's start."""
