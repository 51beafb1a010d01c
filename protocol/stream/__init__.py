"""Messages to whole transactions."""
