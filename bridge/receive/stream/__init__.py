"""The stream of a slot: received, asked for again in another form, queued; and its server's silence."""
