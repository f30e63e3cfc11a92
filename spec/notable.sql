-- The messages that a report may name, for DuckDB, Polars and Spark: the table notable without the
-- rows that later batches took back.
SELECT primary_label, destination, message_id, fate, sum(messages) AS messages
FROM notable
GROUP BY primary_label, destination, message_id, fate
HAVING sum(messages) > 0
