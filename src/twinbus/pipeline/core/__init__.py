"""The rules that judge a ledger, without Spark."""
