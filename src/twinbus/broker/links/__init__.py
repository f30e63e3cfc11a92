"""The AMQP side: a client's connection and what stands behind each of its links."""
