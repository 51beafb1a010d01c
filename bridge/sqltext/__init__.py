"""From SQL text to tokens (scan.l), and from an expression to its raw parse tree (gram.y)."""
