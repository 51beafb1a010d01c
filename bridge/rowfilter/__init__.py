"""A row filter's WHERE clause, as a Spark column whose verdict is PostgreSQL's for every row."""
