"""The likelihood of a model with several grouping factors, nested or crossed."""
