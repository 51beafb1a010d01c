"""Row filters that a PostgreSQL server computes, where Spark cannot."""
