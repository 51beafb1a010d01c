"""A private PostgreSQL server, and the demo that runs pgbridge on it.

Only the command `pgbridge demo` needs this package; tests and benchmarks use its server.
"""
