"""A real mount against a plain dictionary, whatever happens in whatever order (Hypothesis, stateful).

A read of an open handle gives the bytes of the one version that was opened, or an errno that what has
happened allows; an open sees a version that was there within the lifetime of the metadata; nothing hangs.

FUSESTRIPE_MODEL_SECONDS=600 tries as long, with other examples.
What fails is told as it happened: hardly anything that hangs on time happens twice, so Hypothesis' own story
of it, which it makes from a second run, would often be of something else.
"""

from __future__ import annotations

import errno
import itertools
import os
import time
from collections.abc import Callable, Iterator

import hypothesis
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    initialize,
    run_state_machine_as_test,
)

from fusestripe.kernel.rights import has_sys_admin
from tests.support.compared import KEPT, NAMES, PAGE, Compared, step
from tests.support.model_lab import Lab, Shape
from tests.support.mounted import until
from tests.support.mounted_store import KIB, MountedStore, content
from tests.support.proxy import Fault

SECONDS = float(os.environ.get("FUSESTRIPE_MODEL_SECONDS", "0"))
EXAMPLES = 40
STEPS = 50

SHAPES = (
    Shape(16 * KIB),
    Shape(4 * KIB, passthrough=False),
    Shape(64 * KIB, channel=False),
    Shape(32 * KIB, impatient=True),
)
EDGES = tuple(size * KIB for size in (0, 4, 8, 16, 32, 64, 128, 256, 512))
# Files up to half of the daemon's memory, so that four of them do not fit in.
SIZES = st.one_of(
    st.builds(lambda edge, more: max(0, edge + more), st.sampled_from(EDGES), st.integers(-2, 2)),
    st.integers(0, 512 * KIB),
)
LENGTHS = st.one_of(st.sampled_from((1, PAGE, 16 * KIB, 128 * KIB, 1024 * KIB)), st.integers(1, 300 * KIB))
SPANS = st.lists(st.tuples(SIZES, LENGTHS), min_size=1, max_size=4)
"""Offsets and lengths."""
DAMAGES = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 2**20), st.sampled_from(("flip", "flip", "zero", "cut"))),
    min_size=1,
    max_size=4,
)
"""Which of the cache's files, where, and how."""
PICKS = st.integers(0, 7)
"""Which of the handles."""
ANOTHER_RANGE = (("Content-Range", "bytes 1-100/200"),)
# Each is over within a second, so a mount that waits for minutes never fails for them.
ACTIONS = (
    *("status:500", "status:502", "status:503:SlowDown", "status:429", "reset", "close"),
    *("cut:0", "cut:5000", "reset:1", "stall:0.2", "stall:0.2:3000"),
)
FEW = {"nth": st.integers(1, 4), "times": st.integers(1, 2)}
PASSING = st.lists(
    st.one_of(
        st.builds(
            Fault, st.sampled_from(ACTIONS), match=st.sampled_from(("^GET", "^GET", "^LIST", "")), **FEW
        ),
        st.builds(Fault, st.just("pass"), match=st.just("^GET"), headers=st.just(ANOTHER_RANGE), **FEW),
    ),
    min_size=1,
    max_size=2,
)
# Of none comes a byte: with some each time it is a slow origin, which a reader waits for.
LASTING = ("status:503", "reset", "cut:0", "hold", "refuse")


OUTCOMES = (
    *(f"{how}: bytes" for how in ("pread", "sendfile", "mapped", "direct")),
    *("read: ESTALE", "read: EIO", "read: ENOTCONN", "read: SIGBUS"),
    *("open: ENOENT", "damage found"),
    *(("read by the kernel",) if has_sys_admin() else ()),
)
"""What has to come about, or these examples show little."""


class Model(Compared):
    """One example."""

    @initialize(shape=st.sampled_from(SHAPES), sizes=st.lists(SIZES, min_size=3, max_size=4))
    def begin(self, shape: Shape, sizes: list[int]) -> None:
        self.lab.story.append(f"{shape} {sizes}")
        self.shape = shape
        self.lab.mount(shape)
        self.lab.tidy("clear")
        for name, size in zip((KEPT, *NAMES), (1, *sizes), strict=False):
            self._put(name, content(size, self.lab.example * 1000 + len(self.past.now())))

    def teardown(self) -> None:
        """Once all is well again, the mount shows what there is."""
        lab = self.lab
        lab.story.append("the end")
        try:
            with lab.watching():
                self._end()
        finally:
            for name in self.past.now():
                lab.store.delete(f"{self.top}/{name}")

    def _end(self) -> None:
        self._recover()
        self.lab.store.proxy.set_faults([])
        if self.past.contents(KEPT):  # it has begun
            self._be_sure_of_some()
            for handle in list(self.handles):
                self._close(handle)
            for name in NAMES:
                self._catch_up(name)
            status = self.lab.mount(self.shape).status()
            self.lab.seen["damage found"] += status["cache"]["corrupt_stripes"] > 0
            self.lab.check_log(self.shape)

    def _be_sure_of_some(self) -> None:
        """What chance leaves out too often, each in some of the examples."""
        number = self.lab.example % 4
        if number == 0:
            many = self.seeds.choices(range(30), k=4)
            self._restart([(2 * one, self.seeds.randrange(1 << 20), "flip") for one in many])
        elif number == 1:
            handle = self._open(KEPT)
            self._kill()
            if handle is not None:
                self._read(handle, "pread", 0, 1)
        elif number == 2:
            self._replace_under_a_reader(NAMES[1], 400 * KIB)
        elif self.shape.impatient:
            self._fail_while_something_new_is_read("status:503", NAMES[0], (1, 20_000))
            self._recover()

    # What happens at the origin.

    @step(name=st.sampled_from(NAMES), size=SIZES)
    def put(self, name: str, size: int) -> None:
        self._put(name, content(size, self.seeds.getrandbits(60)))

    @step(name=st.sampled_from(NAMES))
    def replace_by_one_of_the_same_size(self, name: str) -> None:
        held = self.past.now().get(name)
        if held is not None:
            self.put(name, len(held))

    @step(name=st.sampled_from(NAMES), size=SIZES)
    def replace_under_a_reader(self, name: str, size: int) -> None:
        self._replace_under_a_reader(name, size)

    @step(name=st.sampled_from(NAMES), number=st.integers(0, 3))
    def put_what_was_there_before(self, name: str, number: int) -> None:
        earlier = self.past.contents(name)
        if earlier:
            self._put(name, earlier[-1 - number % len(earlier)])

    @step(name=st.sampled_from(NAMES))
    def delete(self, name: str) -> None:
        if name in self.past.now():
            begin = time.monotonic()
            self.lab.store.delete(self._key(name))
            self.past.change(name, None, begin, time.monotonic())

    @step(faults=PASSING)
    def fail_a_little(self, faults: list[Fault]) -> None:
        if not self.shape.impatient:
            self.lab.store.proxy.set_faults(faults)

    @step(how=st.sampled_from(LASTING))
    def fail(self, how: str) -> None:
        if self.shape.impatient and self._is_turn("fail"):
            self._fail(how)

    @step(how=st.sampled_from(LASTING), name=st.sampled_from(NAMES), span=st.tuples(SIZES, LENGTHS))
    def fail_while_something_new_is_read(self, how: str, name: str, span: tuple[int, int]) -> None:
        if self.shape.impatient and self._is_turn("fail and read"):
            self._fail_while_something_new_is_read(how, name, span)

    @step()
    def recover(self) -> None:
        self._recover()

    # What readers do.

    @step(name=st.sampled_from(NAMES), is_direct=st.booleans())
    def open(self, name: str, is_direct: bool) -> None:
        self._open(name, os.O_DIRECT if is_direct else 0)

    @step(pick=PICKS, spans=SPANS)
    def pread(self, pick: int, spans: list[tuple[int, int]]) -> None:
        self._read_spans(pick, "pread", spans)

    @step(pick=PICKS, spans=SPANS)
    def sendfile(self, pick: int, spans: list[tuple[int, int]]) -> None:
        self._read_spans(pick, "sendfile", spans)

    @step(pick=PICKS, spans=SPANS)
    def read_a_map(self, pick: int, spans: list[tuple[int, int]]) -> None:
        self._read_spans(pick, "mapped", spans)

    @step(name=st.sampled_from(NAMES))
    def read_whole(self, name: str) -> None:
        self._read_whole(name)

    @step(name=st.sampled_from(NAMES))
    def read_whole_and_let_it_settle(self, name: str) -> None:
        """After it, unless others have it open, the kernel may read it itself."""
        self._read_whole(name)
        if not self.handles:
            self.lab.wait_closed(self.shape)
        self._open(name)

    @step(pick=PICKS)
    def close(self, pick: int) -> None:
        if self.handles:
            self._close(self._pick(pick))

    @step(pick=PICKS)
    def have_the_kernel_forget_its_pages(self, pick: int) -> None:
        if self.handles:
            self._call("forget_pages", self._pick(pick).descriptor)

    @step(name=st.sampled_from(NAMES))
    def stat(self, name: str) -> None:
        self._stat(name)

    @step(directory=st.sampled_from(("", "d/", "d/e/")))
    def list_directory(self, directory: str) -> None:
        begin = time.monotonic()
        code, names = self._call("list", self._path(directory))
        inside = [name for name in (*NAMES, KEPT) if name.startswith(directory)]
        must, may = self.past.directory(inside, self._since("", begin), time.monotonic())
        must_be, may_be = ({name[len(directory) :].split("/")[0] for name in each} for each in (must, may))
        # SeaweedFS keeps a directory for a while that has nothing in it any more.
        may_be |= {name[len(directory) :].split("/")[0] for name in inside if self.past.contents(name)}
        if code == 0:
            assert must_be <= set(names) <= may_be, (names, must_be, may_be)
        else:
            assert code in self._failures(errno.ENOENT if not must else 0), errno.errorcode.get(code)

    @step(name=st.sampled_from(NAMES))
    def catch_up(self, name: str) -> None:
        if not self.is_down:
            self._catch_up(name)

    # What happens to the cache and the daemon.

    @step(name=st.sampled_from(NAMES))
    def evict(self, name: str) -> None:
        self.lab.tidy("evict", f"s3://{self.lab.store.bucket}/{self._key(name)}")

    @step()
    def clear(self) -> None:
        self.lab.tidy("clear")

    @step(damages=DAMAGES)
    def damage(self, damages: list[tuple[int, int, str]]) -> None:
        """Not what the kernel reads itself: that is handed out as it is."""
        if not self.handles:
            self.lab.wait_closed(self.shape)
            self._damage(damages)
        elif not (self.shape.passthrough and self.shape.channel):
            self._damage(damages)

    @step(damages=DAMAGES)
    def restart(self, damages: list[tuple[int, int, str]]) -> None:
        if self._may_end():
            self._restart(damages)

    @step()
    def kill(self) -> None:
        if self._may_end():
            self._kill()

    @step(
        pick=PICKS,
        how=st.sampled_from(("pread", "sendfile", "mapped")),
        span=st.tuples(SIZES, LENGTHS),
        arrived=st.sampled_from((0, 1, 3000, 20_000)),
        event=st.sampled_from(("replace", "delete", "evict", "kill", "outage")),
    )
    def read_and_meanwhile(
        self, pick: int, how: str, span: tuple[int, int], arrived: int, event: str
    ) -> None:
        if not self.handles:
            return
        self._recover()
        handle = self._pick(pick)
        events: dict[str, Callable[[], None]] = {
            "replace": lambda: self._put(handle.name, content(handle.size, self.seeds.getrandbits(60))),
            "delete": lambda: self.delete(handle.name),
            "evict": self.clear,
            "kill": self.kill,
            "outage": self._come_and_go,
        }
        proxy = self.lab.store.proxy
        proxy.set_faults([Fault(f"hold:{arrived}", match="^GET")])

        def happen() -> None:
            until(lambda: self.lab.reader.is_done or proxy.statistics().held > 0)
            events[event]()
            proxy.set_faults([])
            proxy.release()

        self._read(handle, how, *span, meanwhile=happen)
        proxy.set_faults([])  # where there was nothing to read


@pytest.fixture
def lab(store: MountedStore) -> Iterator[Lab]:
    with Lab(store) as lab:
        yield lab


@pytest.mark.timeout(SECONDS + 600)
def test_a_mount_is_like_a_dictionary(lab: Lab) -> None:
    end = time.monotonic() + SECONDS
    seeds = itertools.count(int(os.environ.get("FUSESTRIPE_MODEL_SEED", "1")))
    for seed in seeds:
        with lab.telling(f"seed {seed}"):
            _try(seed, lab)
        if time.monotonic() > end:
            break
    print(f"{lab.example} examples up to seed {seed}: {dict(lab.seen)}")
    missing = set(OUTCOMES) - {what for what, count in lab.seen.items() if count}
    assert not missing, f"{missing} did not come about, but {dict(lab.seen)}"


def _try(seed: int, of_the_test: Lab) -> None:
    class Seeded(Model):
        lab = of_the_test

    run_state_machine_as_test(
        hypothesis.seed(seed)(Seeded),
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=STEPS,
            database=None,
            print_blob=False,
            report_multiple_bugs=False,
            phases=(Phase.generate,),
            suppress_health_check=list(HealthCheck),
        ),
    )
