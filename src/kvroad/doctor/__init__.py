"""Which road would the KV cache take, or did it take, and why not the one that was meant."""
