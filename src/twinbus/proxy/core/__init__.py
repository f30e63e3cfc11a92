"""What becomes of each frame that a fault proxy relays; pure."""
