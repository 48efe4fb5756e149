"""Which global ranks run on this node: as they are named, by torchrun's environment, by Slurm's."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusestripe.checkpoints import Ranks, parse_ranks, ranks_of_node
from fusestripe.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "ranks"),
    [
        ("0", Ranks((0,))),
        ("0-3", Ranks((0, 1, 2, 3))),
        ("5,1-2, 2", Ranks((1, 2, 5))),
        ("8-9/16", Ranks((8, 9), 16)),
    ],
)
def test_ranks_that_are_named(text: str, ranks: Ranks) -> None:
    assert parse_ranks(text) == ranks


@pytest.mark.parametrize(
    "text", ["", "a", "-1", "3-1", "0-", "1;2", "0-7/7", "0/", "0/1-2", "0-9999999", "٣"]
)
def test_what_names_no_ranks(text: str) -> None:
    with pytest.raises(ConfigError, match="rank"):
        parse_ranks(text)


@given(st.lists(st.integers(0, 4000), min_size=1, max_size=40, unique=True).map(sorted))
def test_ranks_are_shown_as_they_are_written(ranks: list[int]) -> None:
    shown = str(Ranks(tuple(ranks), 5000))
    text = shown.removeprefix("ranks ").removeprefix("rank ").removesuffix(" of 5,000")
    assert parse_ranks(text).ranks == tuple(ranks)


PROLOG = {"SLURM_JOB_NODELIST": "node[08-10]", "SLURMD_NODENAME": "node10"}
TORCHRUN = {"LOCAL_WORLD_SIZE": "4", "WORLD_SIZE": "16"}


@pytest.mark.parametrize(
    ("environ", "first", "count", "world"),
    [
        (TORCHRUN | {"GROUP_RANK": "2"}, 8, 4, 16),
        (TORCHRUN | {"GROUP_RANK": "0", "RANK": "13", "LOCAL_RANK": "1"}, 12, 4, 16),
        ({"LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "3"}, 6, 2, None),
        # The launcher's own environment comes before that of Slurm, which started it.
        (TORCHRUN | {"GROUP_RANK": "1", "SLURM_NODEID": "0", "SLURM_TASKS_PER_NODE": "1(x4)"}, 4, 4, 16),
        ({"SLURM_NODEID": "1", "SLURM_TASKS_PER_NODE": "8(x4)"}, 8, 8, 32),
        ({"SLURM_NODEID": "3", "SLURM_TASKS_PER_NODE": "2(x3),1"}, 6, 1, 7),
        ({"SLURM_NODEID": "2", "SLURM_NTASKS_PER_NODE": "8", "SLURM_NNODES": "4"}, 16, 8, 32),
        ({"SLURM_NODEID": "2", "SLURM_NTASKS_PER_NODE": "8"}, 16, 8, None),
        (
            {
                "SLURM_NODEID": "1",
                "SLURM_TASKS_PER_NODE": "1(x2)",
                "SLURM_GPUS_ON_NODE": "8",
                "SLURM_NNODES": "2",
            },
            8,
            8,
            16,
        ),
        ({"SLURM_NODEID": "1", "SLURM_GPUS_ON_NODE": "8"}, 8, 8, None),
        ({"SLURM_NODEID": "1", "SLURM_TASKS_PER_NODE": "8(x2)", "SLURM_GPUS_ON_NODE": "8"}, 8, 8, 16),
        ({"SLURM_NODEID": "0", "SLURM_TASKS_PER_NODE": "1"}, 0, 1, 1),
        # As a Prolog has it.
        (PROLOG | {"SLURM_JOB_GPUS": "0,1,2,3"}, 8, 4, 12),
        (PROLOG | {"SLURM_JOB_GPUS": "3"}, 2, 1, 3),
        ({"SLURM_NODEID": "1", "SLURM_NTASKS_PER_NODE": "4", "SLURM_GPUS_ON_NODE": "8"}, 4, 4, None),
        (PROLOG | {"SLURM_JOB_GPUS": "0-7", "SLURM_JOB_NUM_NODES": "3"}, 16, 8, 24),
    ],
)
def test_the_environment_tells(environ: dict[str, str], first: int, count: int, world: int | None) -> None:
    assert ranks_of_node(environ) == Ranks(tuple(range(first, first + count)), world)


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"SLURM_JOB_ID": "7"},
        {"SLURM_NODEID": "0"},
        {"SLURM_NODEID": "5", "SLURM_TASKS_PER_NODE": "2(x3),1"},
        {"SLURM_NODEID": "0", "SLURM_TASKS_PER_NODE": "many"},
        {"SLURM_NODEID": "0", "SLURM_TASKS_PER_NODE": "4", "SLURM_DISTRIBUTION": "cyclic"},
        PROLOG,
        PROLOG | {"SLURM_JOB_GPUS": "a,b"},
        PROLOG | {"SLURM_JOB_GPUS": "0-7", "SLURMD_NODENAME": "other"},
        PROLOG | {"SLURM_JOB_GPUS": "0-7", "SLURM_JOB_NODELIST": "node[08-"},
        {"LOCAL_WORLD_SIZE": "4"},
        {"LOCAL_WORLD_SIZE": "4", "GROUP_RANK": "9", "WORLD_SIZE": "8"},
    ],
)
def test_where_it_does_not_tell_one_has_to_say(environ: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="--ranks"):
        ranks_of_node(environ)
