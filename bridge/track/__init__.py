"""What is durable, and where to go on."""
