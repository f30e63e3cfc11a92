"""Queues, topics and namespaces: pure, every call has the time."""
