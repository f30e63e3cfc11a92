"""Tables of few rows in this process, by the columns that make them in Spark."""
