"""What runs pgbridge on a machine that has no PostgreSQL: a private server, and the demo on top of it.

Nothing outside this package needs it; the tests borrow its server.
"""
