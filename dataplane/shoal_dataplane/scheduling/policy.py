"""Queue policies: how many requests may wait at a level, how long, and what happens to one that has waited too long."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from shoal_api.protocol import model_config_pb2 as mc
from shoal_dataplane.core.errors import Code, Reason, ServingError, invalid, unavailable
from shoal_dataplane.core.request import InferRequest

FOREVER_NS: Final = 1 << 62
"""146 years. Longer times are cut to this (a delay) or mean no limit (a timeout): a configuration may hold any uint64 of
microseconds, and no timer of the platform sleeps that long."""


@dataclass(frozen=True, slots=True)
class QueuePolicy:
    """One level's policy (proto ModelQueuePolicy). `timeout_ns` 0 is no default timeout, `max_queue_size` 0 no limit of its own.

    `delay` says what happens to a request that has waited for its timeout: True moves it behind the other requests of its level
    (action DELAY), False answers it with an error (REJECT).
    """

    timeout_ns: int = 0
    allow_override: bool = False
    delay: bool = False
    max_queue_size: int = 0

    def timeout_of(self, request: InferRequest) -> int:
        """Nanoseconds that this request may wait, 0 for no limit.

        A request's own timeout only ever lowers the default. It counts with a default of 0 as well, which Triton ignores by an
        accident of its comparison (triton.md C9).
        """
        timeout_ns = self.timeout_ns
        if self.allow_override and request.timeout_us:
            own_ns = request.timeout_us * 1000
            if timeout_ns == 0 or own_ns < timeout_ns:
                timeout_ns = own_ns
        return timeout_ns if timeout_ns < FOREVER_NS else 0


def policy_from_config(policy: mc.ModelQueuePolicy) -> QueuePolicy:
    """Compile a policy of a model configuration."""
    return QueuePolicy(
        timeout_ns=policy.default_timeout_microseconds * 1000,
        allow_override=policy.allow_timeout_override,
        delay=policy.timeout_action == mc.ModelQueuePolicy.DELAY,
        max_queue_size=policy.max_queue_size,
    )


@dataclass(frozen=True, slots=True)
class PriorityLevels:
    """The priority levels of a queue and their policies. 1 is served first; `count` 0 means a single level, numbered 0.

    `count` may be any uint64: only levels with a policy of their own are stored.
    """

    count: int = 0
    default_level: int = 0
    default_policy: QueuePolicy = field(default_factory=QueuePolicy)
    policies: Mapping[int, QueuePolicy] = field(default_factory=dict)

    def level_of(self, request: InferRequest) -> int:
        """The level that a request is queued at: an unset or unknown priority is the default level (triton.md B13)."""
        if not self.count:
            return 0
        return request.priority if 0 < request.priority <= self.count else self.default_level

    def policy_of(self, level: int) -> QueuePolicy:
        """The policy of a level. Without levels, per-level policies are ignored, as in Triton."""
        return self.policies.get(level, self.default_policy) if self.count else self.default_policy


def levels_from_config(config: mc.ModelConfig) -> PriorityLevels:
    """Compile the levels and policies of `config.dynamic_batching`. Raises ServingError(INVALID_ARGUMENT) for a default level that
    is none of the levels."""
    batching = config.dynamic_batching
    count, default = batching.priority_levels, batching.default_priority_level
    if count and not 1 <= default <= count:
        raise invalid(f"default priority level must be in range [1, {count}] for {config.name}")
    return PriorityLevels(
        count=count,
        default_level=default,
        default_policy=policy_from_config(batching.default_queue_policy),
        policies={level: policy_from_config(policy) for level, policy in batching.priority_queue_policy.items()},
    )


def queue_full(request: InferRequest, default_limit: int = 0) -> ServingError:
    """The refusal of a full queue, in Triton's words; `default_limit` is the server's own limit, where that is what was hit."""
    text = f"[request id: {request.id or '<id_unknown>'}] Exceeds maximum queue size"
    if default_limit:
        text += f" (the server's default for a model that sets none: {default_limit})"
    return unavailable(text, Reason.QUEUE_FULL)


def timeout_expired() -> ServingError:
    """The answer to a request that waited longer than its queue's policy or its own timeout allows, in Triton's words."""
    return unavailable("Request timeout expired", Reason.QUEUE_TIMEOUT)


def deadline_passed(waited_ns: int) -> ServingError:
    """The answer to a request whose caller's deadline passed in the queue."""
    return ServingError(
        Code.DEADLINE_EXCEEDED,
        f"the request's deadline passed after {waited_ns / 1e6:.1f} ms in the queue",
        Reason.DEADLINE,
    )
