"""What is published, and to which table: PostgreSQL's publications, read from a file and re-applied on this side."""
