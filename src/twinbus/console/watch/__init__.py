"""Commands that watch running pairs: `twinbus check` for monitoring systems, `twinbus top`."""
