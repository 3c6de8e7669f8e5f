"""Cannot be initialised."""


class TritonPythonModel:
    def initialize(self, args):
        raise RuntimeError("init failed")

    def execute(self, requests):
        return []
