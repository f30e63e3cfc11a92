"""Tables as pure functions from DataFrame to DataFrame, with literal schemas."""
