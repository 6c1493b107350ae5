"""Click-through-rate models: data sources, models, the closing report."""
