"""Twinbus's own client of one namespace over AMQP and HTTP: connection, requests, peeks, counts."""
