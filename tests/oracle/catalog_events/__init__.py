"""Catalog events at random, beside a native subscriber."""
