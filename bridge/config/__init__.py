"""The configuration file."""
