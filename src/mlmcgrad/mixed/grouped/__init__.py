"""The likelihood of a model with one grouping factor, whose groups are independent."""
