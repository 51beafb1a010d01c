"""How fast the stream is received and decoded, beside pg_recvlogical, which only throws it away.

Not for absolute numbers: a machine's noise is as large as what is looked for. Every variant takes the same stream,
in turn, in the same run, and the ratio is what counts. Nothing outside this package needs it.
"""
