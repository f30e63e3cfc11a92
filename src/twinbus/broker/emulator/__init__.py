"""Config.json of Microsoft's Service Bus emulator."""
