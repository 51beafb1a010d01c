"""SQL text to tokens (scan.l), and an expression to its raw parse tree (gram.y)."""
