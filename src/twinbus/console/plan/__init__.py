"""`twinbus plan`: the command, and the simulation with its sheet."""
