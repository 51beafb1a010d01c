"""What is published, and as which table: PostgreSQL's rules. No Spark, no connection."""
