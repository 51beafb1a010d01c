"""The daemon and the command line: arguments, environment and signals are known here only."""
