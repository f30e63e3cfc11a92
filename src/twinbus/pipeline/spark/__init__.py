"""Spark itself: its session, its Java, its settings and its failures as text."""
