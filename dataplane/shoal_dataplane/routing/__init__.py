"""From the name in a request to one loaded version of a model, and from a raw request to a checked one."""
