"""The server's side: connections, catalog queries, the slot, the stream."""
