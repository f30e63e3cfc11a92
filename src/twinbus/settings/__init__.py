"""The settings file `twinbus.toml`: named pairs for the commands."""
