"""What a person reads of a report, a drill or a plan: one form, rendered as text or as a page."""
