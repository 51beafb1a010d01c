"""PostgreSQL's types, casts and signatures, and typed values and expressions as Spark columns."""
