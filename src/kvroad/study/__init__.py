"""What is asked for: configuration, checks, design, identity. No host, no file below results/."""
