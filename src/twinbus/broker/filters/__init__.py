"""Subscription rules: SQL and correlation filters, and SQL actions; pure."""
