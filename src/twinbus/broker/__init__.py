"""The embedded broker: one or more namespaces that Service Bus clients connect to."""
