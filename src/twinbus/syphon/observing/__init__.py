"""What a syphon tells monitoring systems: metrics, health, and the HTTP port that serves them."""
