"""What is published, and to which table."""
