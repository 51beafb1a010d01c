"""Arbitrary bytes against the decoders, guided by coverage (atheris): the longer half of the property tests.

`make fuzz` runs every target for a minute; `python -m fuzz --help` has the rest.
"""
