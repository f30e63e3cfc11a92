"""AMQP 1.0 without I/O: types, performatives and message sections, the body left as bytes."""
