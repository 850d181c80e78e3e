"""What people look at: figures, page, MLflow, archives of raw files."""
