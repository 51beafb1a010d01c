"""What is published, and to which table: publications, routing, row filters."""
