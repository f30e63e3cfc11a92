-- What became of the accepted messages of each destination, from the records of the ledger alone:
-- for DuckDB, Polars and Spark, without twins and the broker's view.
WITH told AS (
  SELECT lower(COALESCE(split_part(pair, '+', 1), split_part(backlog_queue, '/', 1),
      split_part(namespace, '.', 1))) AS primary_label,
    lower(entity) AS destination, message_id,
    CASE WHEN operation IN ('send', 'divert') THEN 1 ELSE 0 END AS accepted,
    CASE WHEN operation IN ('send', 'forward', 'receive') THEN 1 ELSE 0 END AS arrived,
    CASE WHEN operation = 'dead_letter' AND cause <> 'consumer' THEN 1 ELSE 0 END AS put_aside,
    CASE WHEN operation = 'complete' AND cause <> 'consumer' THEN 1 ELSE 0 END AS completed
  FROM bronze
  WHERE outcome = 'ok' AND COALESCE(view, 'client') = 'client' AND message_id IS NOT NULL
), messages AS (
  SELECT primary_label, destination, max(arrived) AS delivered,
    (1 - max(arrived)) * max(put_aside) * (1 - max(completed)) AS dead_lettered,
    (1 - max(arrived)) * (1 - max(put_aside)) * max(completed) AS lost
  FROM told GROUP BY primary_label, destination, message_id HAVING max(accepted) = 1
)
SELECT primary_label, destination, count(*) AS accepted, sum(delivered) AS delivered,
  sum(dead_lettered) AS dead_lettered, sum(lost) AS lost,
  sum(1 - delivered - dead_lettered - lost) AS undecided
FROM messages GROUP BY primary_label, destination
