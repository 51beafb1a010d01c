"""Changes as rows: the schema that a handler, a changelog table and the Spark data source share."""
