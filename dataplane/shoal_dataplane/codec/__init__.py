"""Wire encodings to tensors and back, without a copy where the format allows."""
