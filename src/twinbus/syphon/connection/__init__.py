"""Raw AMQP and HTTP to one namespace: a connection, requests, counts and peeks."""
