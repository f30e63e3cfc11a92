"""Facts of Azure Service Bus, each stated once: conditions, failures, limits, names. Pure."""
