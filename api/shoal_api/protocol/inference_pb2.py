"""Messages of inference.proto, from the private descriptor pool. The stub beside this file has their types."""

from shoal_api.protocol import module_namespace

globals().update(module_namespace("shoal_api/protocol/inference.proto"))
