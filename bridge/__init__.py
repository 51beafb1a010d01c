"""pgbridge: keeps Delta Lake tables equal to published PostgreSQL tables."""

__version__ = "0.1.0"
