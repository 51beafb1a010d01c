"""Runs of row messages, and COPY's rows, to Arrow columns."""
