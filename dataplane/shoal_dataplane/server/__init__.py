"""The doors: translate a protocol to an InferRequest and back."""
