"""The Python backend: model.py files written for Triton."""
