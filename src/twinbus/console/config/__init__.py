"""The settings file in the command line: `--pair` and `--config` of all commands, and `config`."""
