"""The state catalog, one SQLite file: what is followed, how far, and what was seen of it."""
