"""The dynamic batcher against a literal model of the rule, and what must hold of every history."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from shoal_dataplane.core.request import InferRequest
from shoal_dataplane.scheduling.dynamic import DynamicScheduler
from shoal_dataplane.scheduling.policy import PriorityLevels, QueuePolicy
from tests.unit.scheduling.literal import LiteralBatcher, LiteralPolicy
from tests.unit.scheduling.support import US, request


@dataclass(frozen=True)
class Setup:
    limit: int
    preferred: frozenset[int]
    delay_us: int
    levels: int
    default_level: int
    default_policy: LiteralPolicy
    policies: dict[int, LiteralPolicy]

    def literal(self) -> LiteralBatcher:
        return LiteralBatcher(
            self.limit,
            self.preferred or frozenset({self.limit}),
            self.delay_us * US,
            self.levels,
            self.default_level,
            self.default_policy,
            self.policies,
        )

    def scheduler(self, levels: PriorityLevels | None = None) -> DynamicScheduler:
        return DynamicScheduler(
            self.limit,
            preferred=self.preferred,
            delay_ns=self.delay_us * US,
            levels=levels
            or PriorityLevels(
                self.levels,
                self.default_level,
                compiled(self.default_policy),
                {level: compiled(policy) for level, policy in self.policies.items()},
            ),
        )


def compiled(policy: LiteralPolicy) -> QueuePolicy:
    return QueuePolicy(policy.timeout_ns, policy.override, policy.delay)


@dataclass(frozen=True)
class Arrive:
    rows: int
    key: int
    priority: int
    timeout_us: int
    deadline_us: int | None


@dataclass(frozen=True)
class Pass:
    us: int


@dataclass(frozen=True)
class Look:
    """Form a batch, if there is one."""


@dataclass(frozen=True)
class Expire:
    """As the pump's timer does while every instance is busy."""


@dataclass(frozen=True)
class Cancel:
    which: int


Step = Arrive | Pass | Look | Expire | Cancel

policies = st.builds(
    LiteralPolicy,
    timeout_ns=st.sampled_from([0, 0, 3 * US, 7 * US]),
    override=st.booleans(),
    delay=st.booleans(),
)


@st.composite
def setups(draw: st.DrawFn) -> Setup:
    limit = draw(st.sampled_from([1, 4, 8, 10, 40, 40]))
    levels = draw(st.sampled_from([0, 0, 1, 3]))
    return Setup(
        limit=limit,
        preferred=draw(st.frozensets(st.integers(1, limit), max_size=3)),
        delay_us=draw(st.sampled_from([0, 5, 20, 20])),
        levels=levels,
        default_level=draw(st.integers(1, levels)) if levels else 0,
        default_policy=draw(policies),
        policies=draw(st.dictionaries(st.integers(1, levels), policies)) if levels else {},
    )


def mostly(usual: object, *others: object) -> st.SearchStrategy[object]:
    return st.sampled_from([*[usual] * (3 * len(others)), *others])


arrivals = st.builds(
    Arrive,
    rows=mostly(1, 2, 3, 4, 11),
    key=mostly(0, 0, 1),
    priority=st.integers(0, 4),
    timeout_us=mostly(0, 2, 4, 9),
    deadline_us=mostly(None, 2, 6, 12),
)
looks: st.SearchStrategy[Step] = st.just(Look())
single_steps = (
    looks
    | looks
    | st.just(Expire())
    | st.builds(Pass, us=st.integers(0, 8))
    | st.builds(Cancel, which=st.integers(0, 50))
)
# Bursts of arrivals, arrivals that are looked at one by one, and lists that are long enough: drawn step by step, queues stay too
# short for batches to form and to be waited for.
steps: st.SearchStrategy[list[Step]] = st.lists(
    st.lists(arrivals, min_size=1, max_size=6)
    | st.lists(arrivals, min_size=1, max_size=6).map(lambda group: [step for each in group for step in (each, Look())])
    | st.lists(single_steps, min_size=1, max_size=3),
    min_size=8,
    max_size=20,
).map(lambda groups: [step for group in groups for step in group])


class History:
    """Drives a scheduler through steps and checks, after each, what must always hold."""

    def __init__(self, setup: Setup, scheduler: DynamicScheduler) -> None:
        self.setup = setup
        self.scheduler = scheduler
        self.levels = scheduler._levels
        self.now = 0
        self.waiting: list[InferRequest] = []
        self.outcome: dict[str, str] = {}
        self.log: list[list[str] | int | None] = []

    def arrive(self, step: Arrive) -> InferRequest:
        deadline = None if step.deadline_us is None else self.now + step.deadline_us * US
        new = request(
            str(len(self.waiting) + len(self.outcome)),
            step.rows,
            key=step.key,
            priority=step.priority,
            timeout_us=step.timeout_us,
            deadline_ns=deadline,
        )
        self.scheduler.enqueue(new, self.now)
        assert new.queued_ns == self.now
        self.waiting.append(new)
        return new

    def cancel(self, which: int) -> InferRequest | None:
        if not self.waiting:
            return None
        gone = self.waiting[which % len(self.waiting)]
        assert self.scheduler.remove(gone)
        assert not self.scheduler.remove(gone)
        self.settle(gone, "removed")
        return gone

    def settle(self, done: InferRequest, how: str) -> None:
        """Each request leaves once, in one way."""
        self.waiting.remove(done)
        assert done.id not in self.outcome
        self.outcome[done.id] = how

    def expires_at(self, waiting: InferRequest) -> int | None:
        """When it must be answered with an error."""
        policy = self.levels.policy_of(self.levels.level_of(waiting))
        timeout = policy.timeout_of(waiting)
        times = [waiting.deadline_ns, waiting.queued_ns + timeout if timeout and not policy.delay else None]
        return min((time for time in times if time is not None), default=None)

    def place(self, waiting: InferRequest) -> tuple[int, bool]:
        """Level, and whether it was moved behind."""
        level = self.levels.level_of(waiting)
        policy = self.levels.policy_of(level)
        timeout = policy.timeout_of(waiting)
        return level, bool(policy.delay and timeout and waiting.queued_ns + timeout <= self.now)

    def look(self) -> None:
        batch, wake = self.scheduler.next_batch(self.now)
        if batch is None:
            self.log.append(wake)
            assert wake is None or wake > self.now
            return
        assert wake is None
        self.log.append([each.id for each in batch.requests])
        assert batch.size == sum(each.batch_size for each in batch.requests)
        assert batch.size <= self.setup.limit or len(batch.requests) == 1
        assert len({each.batch_key for each in batch.requests}) == 1
        for each in batch.requests:
            expiry = self.expires_at(each)
            assert expiry is None or expiry > self.now
            self.settle(each, "ran")
        left = [e for e in self.waiting if (at := self.expires_at(e)) is None or at > self.now]
        places = [self.place(each) for each in batch.requests]
        assert places == sorted(places)
        assert all(places[-1] <= self.place(each) for each in left)
        for each in batch.requests:
            if not self.place(each)[1]:
                assert not any(self.place(other) == self.place(each) and int(other.id) < int(each.id) for other in left)

    def expire(self) -> None:
        for each, error in self.scheduler.expire(self.now):
            expiry = self.expires_at(each)
            assert expiry is not None
            assert expiry <= self.now
            self.settle(each, error.reason)
        assert all((at := self.expires_at(each)) is None or at > self.now for each in self.waiting)
        upcoming = self.scheduler.next_expiry_ns()
        assert upcoming is None or upcoming > self.now
        first = min((at for each in self.waiting if (at := self.expires_at(each)) is not None), default=None)
        assert first is None or (upcoming is not None and upcoming <= first)

    def finish(self) -> None:
        """Nothing is left after enough time: every request ran or was answered."""
        self.now += 1000 * US
        self.expire()
        while self.waiting:
            before = len(self.waiting)
            self.look()
            assert len(self.waiting) < before
        assert self.scheduler.pending() == 0
        assert self.scheduler.next_expiry_ns() is None
        assert self.scheduler.next_batch(self.now) == (None, None)


@settings(max_examples=120, deadline=None)
@given(setup=setups(), steps=steps)
def test_every_decision_is_that_of_the_literal_rule(setup: Setup, steps: list[Step]) -> None:
    literal, history = setup.literal(), History(setup, setup.scheduler())
    for step in steps:
        if isinstance(step, Arrive):
            new = history.arrive(step)
            literal.enqueue(
                new.id, step.rows, step.key, step.priority, step.timeout_us * US, new.deadline_ns, history.now
            )
        elif isinstance(step, Cancel):
            gone = history.cancel(step.which)
            if gone is not None:
                literal.remove(gone.id)
        elif isinstance(step, Pass):
            history.now += step.us * US
        elif isinstance(step, Expire):
            history.expire()
        else:
            history.look()
            names, wake = literal.look(history.now)
            assert history.log[-1] == (wake if names is None else names)


@settings(max_examples=80, deadline=None)
@given(setup=setups(), steps=steps)
def test_every_request_runs_or_is_answered_once_and_in_order(setup: Setup, steps: list[Step]) -> None:
    history = History(setup, setup.scheduler())
    for step in steps:
        replay(history, step)
    history.finish()


@settings(max_examples=50, deadline=None)
@given(setup=setups(), steps=steps)
def test_a_queue_without_levels_decides_as_one_with_a_single_level(setup: Setup, steps: list[Step]) -> None:
    policy = compiled(setup.default_policy)
    plain = History(setup, setup.scheduler(PriorityLevels(default_policy=policy)))
    general = History(setup, setup.scheduler(PriorityLevels(1, 1, policy)))
    for step in steps:
        replay(plain, step)
        replay(general, step)
    assert plain.log == general.log
    assert plain.outcome == general.outcome


def replay(history: History, step: Step) -> None:
    if isinstance(step, Arrive):
        history.arrive(step)
    elif isinstance(step, Cancel):
        history.cancel(step.which)
    elif isinstance(step, Pass):
        history.now += step.us * US
    elif isinstance(step, Expire):
        history.expire()
    else:
        history.look()
