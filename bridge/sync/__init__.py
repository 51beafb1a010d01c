"""A subscription's start, the initial copy, and tables that are added later, as PostgreSQL's tablesync.c does them."""
