"""What kvroad itself costs: measured here, written to docs/performance.md and docs/scale.md."""
