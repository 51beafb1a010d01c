"""What each command prints, and what it asks of the catalog and the server."""
