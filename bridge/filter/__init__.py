"""What a publication's definition lets through, decided on this side of the stream."""
