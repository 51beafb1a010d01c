"""Messages, read and written: pgoutput's, the walsender's."""
