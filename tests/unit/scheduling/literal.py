"""The batch-forming rule as triton.md C14 and C8 write it, slowly: what the product's schedulers are compared with.

It shares no code and no data structure with them: one list in order of arrival is sorted and walked again at every look, and the
cursor of Triton's queue is kept as Triton keeps it (dynamic_batch_scheduler.cc, scheduler_utils.cc).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class LiteralPolicy:
    timeout_ns: int = 0
    override: bool = False
    delay: bool = False


@dataclass(eq=False)
class Waiting:
    name: str
    rows: int
    key: object
    level: int
    arrived: int
    timeout_at: int | None
    deadline: int | None
    delay: bool

    def is_delayed(self, now: int) -> bool:
        return self.delay and self.timeout_at is not None and self.timeout_at <= now

    def is_expired(self, now: int) -> bool:
        if self.deadline is not None and self.deadline <= now:
            return True
        return not self.delay and self.timeout_at is not None and self.timeout_at <= now

    def next_change(self, now: int) -> int | None:
        """When its place in the queue changes next."""
        times = [self.deadline, None if self.is_delayed(now) else self.timeout_at]
        return min((time for time in times if time is not None), default=None)


@dataclass
class LiteralBatcher:
    limit: int
    preferred: frozenset[int]
    delay_ns: int
    levels: int = 0
    default_level: int = 0
    default_policy: LiteralPolicy = field(default_factory=LiteralPolicy)
    policies: Mapping[int, LiteralPolicy] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.queue: list[Waiting] = []
        self.expired: list[str] = []
        self.pending: list[Waiting] = []
        self.cursor_valid = False
        self.looked_at = 0

    def enqueue(
        self, name: str, rows: int, key: object, priority: int, timeout_ns: int, deadline: int | None, now: int
    ) -> None:
        level, policy = 0, self.default_policy
        if self.levels:
            level = priority if 1 <= priority <= self.levels else self.default_level
            policy = self.policies.get(level, self.default_policy)
        timeout = policy.timeout_ns
        if policy.override and timeout_ns and (not timeout or timeout_ns < timeout):
            timeout = timeout_ns
        new = Waiting(name, rows, key, level, now, now + timeout if timeout else None, deadline, policy.delay)
        self.queue.append(new)
        if self.pending:
            at = self.pending[-1]
            if (new.level, False) < (at.level, at.is_delayed(now)):
                self.cursor_valid = False

    def remove(self, name: str) -> None:
        self.queue = [each for each in self.queue if each.name != name]
        self.cursor_valid = False

    def apply_policy(self, now: int) -> list[Waiting]:
        """Drop what has expired; return the rest in the order of service. The delayed come in the order of their timeouts."""
        gone = [each for each in self.queue if each.is_expired(now)]
        self.expired += [each.name for each in gone]
        self.queue = [each for each in self.queue if each not in gone]
        place = {id(each): index for index, each in enumerate(self.queue)}

        def order(each: Waiting) -> tuple[int, bool, int, int]:
            delayed = each.is_delayed(now)
            assert not delayed or each.timeout_at is not None
            return each.level, delayed, (each.timeout_at or 0) if delayed else 0, place[id(each)]

        return sorted(self.queue, key=order)

    def look(self, now: int) -> tuple[list[str] | None, int | None]:
        """The names that run now, or None and when to look again."""
        ordered = self.apply_policy(now)
        closest = min((t for each in self.pending if (t := each.next_change(self.looked_at)) is not None), default=0)
        if not (self.cursor_valid and now < closest):
            self.pending = []
        assert ordered[: len(self.pending)] == self.pending
        best = mark = 0
        send_now = False
        largest = max(self.preferred)
        for request in ordered[len(self.pending) :]:
            total = sum(each.rows for each in self.pending)
            if self.pending:
                if total + request.rows > largest and best == 0:
                    best, mark = total, len(self.pending)
                if total + request.rows > self.limit:
                    send_now = True
                    break
                if request.key != self.pending[0].key:
                    send_now = True
                    break
            self.pending.append(request)
            if total + request.rows in self.preferred:
                best, mark = total + request.rows, len(self.pending)
        self.looked_at = now
        if not self.pending:
            return None, None
        total = sum(each.rows for each in self.pending)
        age = now - min(each.arrived for each in self.pending)
        exceeded = self.delay_ns != 0 and age >= self.delay_ns
        if best and not exceeded:
            return self.run(mark), None
        if send_now or total >= largest:
            return self.run(len(self.pending)), None
        if exceeded or self.delay_ns == 0:
            return self.run(len(self.pending)), None
        self.cursor_valid = True
        changes = [t for each in self.pending if (t := each.next_change(now)) is not None]
        return None, min([now + self.delay_ns - age, *changes])

    def run(self, count: int) -> list[str]:
        taken = self.pending[:count]
        self.queue = [each for each in self.queue if each not in taken]
        self.pending = []
        self.cursor_valid = False
        return [each.name for each in taken]
