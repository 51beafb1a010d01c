"""Spark's driver: its session, local, on a cluster or by Spark Connect, its jars, and what its errors mean."""
