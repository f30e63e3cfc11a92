"""How fast messages go to the primary: one governor for a host, one pace for each pump."""
