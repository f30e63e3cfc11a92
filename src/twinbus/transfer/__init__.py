"""Converts a message to its backlog form and back (docs/guarantees.md).

`sections` works on raw AMQP sections, as the syphon receives them; `sdk` makes the backlog form of
message objects of azure-servicebus, which a paired sender uses. `aliases` has what both share:
names, types, sizes. `unpacking` restores the messages of raw deliveries, fast.
"""
