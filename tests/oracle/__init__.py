"""What pgbridge's tables are compared with: PostgreSQL's own subscriber, and the load both are put under."""
