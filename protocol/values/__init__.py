"""The values of PostgreSQL's types, in text and in binary form, as Arrow arrays.

Modules, lowest first: `types` (PostgreSQL type -> Arrow type and `Kind`; `oids.tsv` has the built-in ones),
`value_array` (many values in one buffer), `text_values` and `output` (text forms), `numeric`, `binary_values`,
`arrays`, and `readers`, which choose by the kind. Values of every type can be read: those without a `Kind` of their own
as text.

To add a type, or to read one in binary form:

1. `types`: name it in a `Kind`, or add a `Kind` with its Arrow type.
2. `binary_values`: enter a reader of its binary form in READERS; `output` has functions of one value, for rare types.
3. `text_values`: enter a reader of its text form in READERS, unless its column is a string.
4. `tests/protocol/sampled.py`: declare it with literals; the tests read them from a server in both forms. If it is not
   a string, say which Arrow type it is in `tests/protocol/values/test_types.py`, and how one value is read in
   `tests/protocol/independent.py`.

A new Arrow type needs its Spark type as well, in `bridge/lake/schema.py`. The built-in types of a new version
of PostgreSQL are generated: see `oids.tsv`.
"""
