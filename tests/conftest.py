"""Wiring only: the fixtures live in the `fix_*` plugins; README.md here says what they promise."""

pytest_plugins = ("tests.fix_postgres", "tests.fix_spark", "tests.fix_bridge")
