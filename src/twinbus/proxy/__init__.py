"""A fault proxy: relays AMQP to a namespace and has it misbehave on request (docs/broker.md).

core/           decides about each frame; pure
connection      two sockets around one relay
host            the port, `/$faults`, and the faults in force
certificate     the certificate of one run, and how each SDK trusts it
"""
