"""What a manifest means for a data plane: pure planning, the same in a cluster and in `shoal serve`."""

from shoal_operator.tables.model import HttpFile, LocalPath, ModelEntry, plan_model

__all__ = ["HttpFile", "LocalPath", "ModelEntry", "plan_model"]
