"""The file cache, against a dictionary that keeps its order, and shared by processes."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import random
import shutil
import tempfile
from collections import OrderedDict
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from precision_time.errors import IngestError
from precision_time.ingest.storage.file_cache import FileCache


def content(key: str) -> bytes:
    """Bytes that belong to a key: 100 for "0", 107 for "1" ..."""
    return key.encode().ljust(100 + 7 * int(key), b".")


class Oracle:
    """What a cache should hold, one sample after the other."""

    def __init__(self, capacity: int, policy: str) -> None:
        self.capacity, self.policy, self.kept = capacity, policy, OrderedDict[str, int]()

    def get(self, key: str) -> bool:
        if key in self.kept:
            self.kept.move_to_end(key)
            return True
        size = len(content(key))
        if self.policy == "lru" and size <= self.capacity:
            while sum(self.kept.values()) + size > self.capacity:
                self.kept.popitem(last=False)
        if sum(self.kept.values()) + size <= self.capacity:
            self.kept[key] = size
        return False


@settings(max_examples=40)
@given(
    keys=st.lists(st.integers(0, 30).map(str), min_size=1, max_size=60),
    capacity=st.integers(0, 2500),
    policy=st.sampled_from(["lru", "no-eviction"]),
)
def test_it_holds_what_the_policy_says_and_never_more_than_its_capacity(
    keys: list[str], capacity: int, policy: str
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        cache, oracle = FileCache(folder, capacity, policy), Oracle(capacity, policy)
        for key in keys:
            before = cache.hits
            assert cache.get(key, content) == content(key)
            assert (cache.hits > before) == oracle.get(key)
            assert cache.held() == sum(oracle.kept.values()) <= capacity
            assert len(cache) == len(oracle.kept)
        assert cache.hits + cache.misses == len(keys)


def test_clear_and_warm(tmp_path: Path) -> None:
    cache = FileCache(tmp_path)
    cache.warm("012", content)
    assert (cache.hits, cache.misses, len(cache), cache.held()) == (0, 0, 3, 100 + 107 + 114)
    assert "2" in cache
    assert "3" not in cache
    cache.get("1", lambda key: pytest.fail("it was warm"))
    cache.clear()
    assert (cache.hits, cache.misses, len(cache), cache.held()) == (0, 0, 0, 0)


def _use(folder: str, seed: int, capacity: int, counts: multiprocessing.Queue) -> None:  # type: ignore[type-arg]
    cache, chance = FileCache(folder, capacity), random.Random(seed)
    most = 0
    for _ in range(400):
        key = str(chance.randrange(40))
        assert cache.get(key, content) == content(key)
        most = max(most, cache.held())
    counts.put((cache.hits, cache.misses, most))


@pytest.mark.parametrize("capacity", [2000, 10**6])
def test_processes_share_it(tmp_path: Path, capacity: int) -> None:
    context = multiprocessing.get_context("spawn")
    counts = context.Queue()
    FileCache(tmp_path, capacity)
    users = [context.Process(target=_use, args=(str(tmp_path), seed, capacity, counts)) for seed in range(3)]
    for user in users:
        user.start()
    found = [counts.get(timeout=60) for _ in users]
    for user in users:
        user.join()
        assert user.exitcode == 0
    cache = FileCache(tmp_path, capacity)
    held = cache.held()
    assert held == sum(path.stat().st_size for path in tmp_path.glob("*.item")) <= capacity
    assert all(most <= capacity for *_, most in found)
    misses = sum(misses for _, misses, _ in found)
    if capacity == 10**6:  # each of 40 samples is missed once, or by several at the same moment
        assert 40 <= misses <= 3 * 40
        assert len(cache) == 40
    else:  # 2000 bytes hold about 8 of 40
        assert misses > 600
    assert not list(tmp_path.glob("*.item.*"))


def test_a_copy_counts_anew_and_a_second_opening_must_agree(tmp_path: Path) -> None:
    cache = FileCache(tmp_path, 1000)
    cache.get("1", content)
    assert pickle.loads(pickle.dumps(cache)).get("1", content) == content("1")
    assert FileCache(tmp_path, 1000).misses == 0
    with pytest.raises(IngestError, match="holds a cache of capacity 1000, not 2000; give the same"):
        FileCache(tmp_path, 2000)
    with pytest.raises(IngestError, match="holds a cache of policy lru, not no-eviction"):
        FileCache(tmp_path, 1000, "no-eviction")


def test_what_a_killed_process_was_writing_is_removed(tmp_path: Path) -> None:
    FileCache(tmp_path).get("1", content)
    ended = multiprocessing.get_context("spawn").Process(target=print)
    ended.start()
    ended.join()
    mine, left = (tmp_path / f"ab.item.{pid}.1" for pid in (os.getpid(), ended.pid))
    mine.write_bytes(b"being written")
    left.write_bytes(b"was being written")
    cache = FileCache(tmp_path)
    assert (mine.exists(), left.exists(), len(cache), cache.held()) == (True, False, 1, 107)


def test_bad_words_are_said(tmp_path: Path) -> None:
    with pytest.raises(IngestError, match="policy 'lr' of the cache is unknown; nearest: lru"):
        FileCache(tmp_path, policy="lr")
    with pytest.raises(IngestError, match="capacity of the cache is -1 bytes"):
        FileCache(tmp_path, -1)
    (tmp_path / "letter").write_text("mine")
    with pytest.raises(IngestError, match="holds other files than a cache; choose another"):
        FileCache(tmp_path)
    with pytest.raises(IngestError, match="cannot be used"):
        FileCache(tmp_path / "letter")


def test_a_sample_that_cannot_be_kept_is_said_and_leaves_nothing(tmp_path: Path) -> None:
    cache = FileCache(tmp_path / "gone")
    shutil.rmtree(tmp_path / "gone")
    with pytest.raises(IngestError, match="cannot keep a sample"):
        cache.get("1", content)
