"""What is measured on a model or on tensors."""
