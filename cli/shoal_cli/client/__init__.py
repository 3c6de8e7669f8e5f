"""A first look at a running server, without writing a client: `shoal models`, `shoal infer`."""
