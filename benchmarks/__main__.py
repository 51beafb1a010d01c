"""`python -m benchmarks`; `make bench` runs its `receive`."""

from benchmarks.cli import app

app(prog_name="python -m benchmarks")
