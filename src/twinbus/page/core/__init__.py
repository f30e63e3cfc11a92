"""What the page shows, from answers and records to documents. Pure."""
