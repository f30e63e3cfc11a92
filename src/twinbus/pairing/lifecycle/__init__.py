"""The start and the end of a pair: finds backlog queues, closes and faults the sides."""
