"""The quickstart's two networks, written in plain torch: only the step that prepares the models imports them."""
