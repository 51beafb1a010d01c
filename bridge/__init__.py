"""pgbridge: keeps Delta Lake tables equal to published PostgreSQL tables."""
