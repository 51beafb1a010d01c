"""PostgreSQL's rules on publications: what is published, and as which table. No connection, no Spark."""
