"""Networks whose tensors carry a leading replica axis: a body of features and a head for each task."""
