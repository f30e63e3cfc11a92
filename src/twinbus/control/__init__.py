"""The control socket: queries and steers a running pair or syphon from outside.

docs/observability.md states the rules.
`protocol` defines the messages, `server` runs inside the application, and `sockets` opens, finds
and asks the sockets.
"""
