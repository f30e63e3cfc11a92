"""Transactions: sends and settlements on one namespace that happen together or not at all."""
