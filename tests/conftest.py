"""Wiring only: the fixtures live in the `fix_*` plugins; README.md here says what they promise."""

from hypothesis import settings

pytest_plugins = (
    "tests.fix_selection",
    "tests.fix_log",
    "tests.fix_postgres",
    "tests.fix_spark",
    "tests.fix_s3",
    "tests.fix_connect",
    "tests.fix_cluster",
    "tests.fix_bridge",
    "tests.fix_cli",
)

# Spark and a server share the cores with the tests: an example's time says nothing.
settings.register_profile("pgbridge", deadline=None, max_examples=50)
settings.load_profile("pgbridge")
