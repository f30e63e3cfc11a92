"""`twinbus status` and the commands that steer a running pair."""
