"""The control socket: how a running pair or syphon is asked and steered from outside (SPEC 6).

`protocol` is what is said, `server` the end inside the application, `client` the end of the command
line, `run_directory` where the two meet.
"""
