"""The network: tensors in, tensors out."""
