"""How fast pgbridge is, beside what PostgreSQL itself does with the same work.

Not for absolute numbers: a machine's noise is as large as what is looked for. All variants do the same work, in turn,
in the same run, and the ratio is what counts. Nothing outside this package needs it.
"""
