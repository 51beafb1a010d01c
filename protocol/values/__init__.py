"""The values of PostgreSQL's types, in text and in binary form, as Arrow arrays."""
