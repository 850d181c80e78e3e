"""From a raw folder to proven or refused."""
