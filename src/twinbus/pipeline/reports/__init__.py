"""The four reports, from the gold tables to plain data."""
