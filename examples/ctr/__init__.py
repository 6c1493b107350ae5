"""Click-through-rate models: data sources, models, training and the report."""
