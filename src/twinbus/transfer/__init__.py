"""Converts a message to its backlog form and back (docs/guarantees.md).

`sections` works on raw AMQP sections, as the syphon receives them; `sdk` on the message objects of
azure-servicebus, as a paired sender uses them. `aliases` has what both share: names, types, sizes.
`unpacking` restores the messages of raw deliveries, fast.
"""
