"""The operators, functions and casts that are translated, by the kind of value."""
