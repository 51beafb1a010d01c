"""The subscription's state on disk, and the decisions on it: what is durable, where to go on, what to skip."""
