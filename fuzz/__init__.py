"""Fuzzing: feeds arbitrary bytes to the decoders, guided by coverage (atheris). It continues the property tests.

`make fuzz` runs every target for a minute; see also `python -m fuzz --help`.
"""
