"""What moves the bytes under the connector, one backend to a file."""
