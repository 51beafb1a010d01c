"""Divides SQL text into tokens (scan.l), and parses an expression to its raw parse tree (gram.y)."""
