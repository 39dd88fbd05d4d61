"""What every shard cache must do, as tests to inherit. Needs no test library at import."""
# ruff: noqa: S101  (these are tests)

from __future__ import annotations

import contextlib
import random
import threading
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator

from lance_stream.tiers.framed import FramedCache
from lance_stream.tiers.shard_cache import ShardCache, ValueTooLargeError

__all__ = ["ShardCacheContract"]

_THREADS = 8
_TIMEOUT_S = 30.0


class ShardCacheContract(ABC):
    """The tests of a shard cache.

    Inherit in a class that pytest collects, and give it caches::

        class TestMyCache(ShardCacheContract):
            def new_cache(self):
                return MyCache("my://localhost:1234")

    Attributes:
        is_shared: Whether two caches that ``new_cache`` gives within a test hold the same.
        is_lasting: Whether what was put must still be there right afterwards: any cache may lose
            what it has, but one that always does passes no test otherwise.
        secrets: Texts, say passwords, that the ``repr`` must not show.
        large_bytes: Size of a large value.
        rounds: Calls that each of eight threads makes at once; fewer where calls are slow.
    """

    is_shared: bool = True
    is_lasting: bool = True
    secrets: tuple[str, ...] = ()
    large_bytes: int = 3_000_000
    rounds: int = 20

    @abstractmethod
    def new_cache(self) -> ShardCache:
        """A cache that works; called at least once in each test, and closed by it."""

    @contextlib.contextmanager
    def cache(self) -> Iterator[ShardCache]:
        """A cache, closed at the end."""
        cache = self.new_cache()
        try:
            yield cache
        finally:
            cache.close()

    def test_it_is_a_shard_cache(self) -> None:
        """Declared as one, so that optional methods are there."""
        with self.cache() as cache:
            assert isinstance(cache, ShardCache)

    def test_what_was_never_put_is_absent(self) -> None:
        """Nothing, not an error."""
        with self.cache() as cache:
            key = new_key()
            assert cache.get(key) is None
            assert key not in cache
            assert cache.get_many([key, new_key()]) == [None, None]
            cache.delete(key)

    def test_what_was_put_comes_back(self) -> None:
        """Whatever bytes they are, also none."""
        values = [b"", b"\0", b"\r\nEND\r\n", bytes(range(256)) * 5]
        with self.cache() as cache:
            keys = [new_key() for _ in values]
            for key, value in zip(keys, values, strict=True):
                cache.put(key, value)
                self.expect(cache, key, value)
            for key, value in zip(keys, values, strict=True):
                self.expect(cache, key, value)
            if self.is_lasting:
                assert cache.get_many(keys) == values

    def test_the_last_put_wins(self) -> None:
        """Longer, shorter and equally long ones."""
        with self.cache() as cache:
            key = new_key()
            for value in (b"first", b"a longer second", b"3", b"4"):
                cache.put(key, value)
                self.expect(cache, key, value)

    def test_deleting_takes_one_away_and_may_be_repeated(self) -> None:
        """And it can be put again."""
        with self.cache() as cache:
            gone, kept = new_key(), new_key()
            cache.put(gone, b"gone")
            cache.put(kept, b"kept")
            for _ in range(2):
                cache.delete(gone)
                assert cache.get(gone) is None
                assert gone not in cache
            self.expect(cache, kept, b"kept")
            cache.put(gone, b"again")
            self.expect(cache, gone, b"again")

    def test_values_up_to_the_largest_are_kept_and_larger_ones_refused(self) -> None:
        """With an error, not by losing them silently."""
        with self.cache() as cache:
            largest = cache.max_value_bytes()
            key, value = new_key(), random_bytes(min(largest or self.large_bytes, 8 << 20))
            cache.put(key, value)
            self.expect(cache, key, value)
            if largest is not None and largest <= 8 << 20:
                other = new_key()
                try:
                    cache.put(other, random_bytes(2 * largest))
                except ValueTooLargeError:
                    assert cache.get(other) is None
                else:
                    raise AssertionError("a value over max_value_bytes() was taken")

    def test_large_content_survives_framing(self) -> None:
        """In parts, if the cache has a limit."""
        with self.cache() as cache:
            framed = FramedCache(cache)
            content = random_bytes(self.large_bytes)
            key = new_key()
            framed.put(key, content)
            assert key in framed
            assert framed.get(key) == content
            framed.delete(key)
            assert framed.get(key) is None

    def test_a_claim_is_held_by_one(self) -> None:
        """Where there are claims: until it is released; its holder may ask again."""
        with self.cache() as one, self.cache() as other:
            key, me, another = new_key(), "a" * 32, "b" * 32
            if one.claim(key, me, 60.0) is None:
                one.release(key, me)
                return
            # A claim is not a value.
            assert key not in one
            assert one.claim(key, me, 60.0) is True
            if self.is_shared:
                assert other.claim(key, another, 60.0) is False
                other.release(key, another)
                assert other.claim(key, another, 60.0) is False
            assert one.claim(new_key(), another, 60.0) is True
            one.put(key, b"value")
            one.release(key, me)
            self.expect(one, key, b"value")
            assert other.claim(key, another, 60.0) is True
            other.release(key, another)

    def test_two_caches_are_one(self) -> None:
        """What one node puts, another gets."""
        with self.cache() as one, self.cache() as other:
            key = new_key()
            one.put(key, b"from one")
            if self.is_shared:
                self.expect(other, key, b"from one")
                other.delete(key)
                assert one.get(key) is None

    def test_concurrent_puts_of_one_key_leave_one_of_them(self) -> None:
        """Never a mixture, also for who reads meanwhile."""
        with self.cache() as one, self.cache() as other:
            key, size = new_key(), min(300_000, one.max_value_bytes() or 300_000)
            values = {bytes([number]) * size for number in range(_THREADS)}
            strange: list[object] = []

            def write(number: int) -> None:
                cache = (one, other)[number % 2]
                for _ in range(max(1, self.rounds // 4)):
                    cache.put(key, bytes([number]) * size)
                    found = cache.get(key)
                    if found is not None and found not in values:
                        strange.append(len(found))

            run_threads(write, _THREADS)
            assert strange == []
            found = one.get(key)
            assert found in values if self.is_lasting else found is None or found in values

    def test_threads_do_not_get_each_others_values(self) -> None:
        """One connection must not serve two at once."""
        with self.cache() as cache:
            strange: list[object] = []

            def work(number: int) -> None:
                key, value = new_key(), random_bytes(1000 + number)
                for _ in range(self.rounds):
                    cache.put(key, value)
                    found = cache.get(key)
                    if found != value and (self.is_lasting or found is not None):
                        strange.append(number)

            run_threads(work, _THREADS)
            assert strange == []

    def test_closing_may_be_repeated(self) -> None:
        """The download process may close twice on its way out."""
        cache = self.new_cache()
        cache.get(new_key())
        cache.close()
        cache.close()

    def test_repr_shows_no_secrets(self) -> None:
        """It goes into logs."""
        with self.cache() as cache:
            for secret in self.secrets:
                assert secret not in repr(cache)
                assert secret not in str(cache)

    def expect(self, cache: ShardCache, key: str, value: bytes) -> None:
        """Check what the cache has for a key."""
        found = cache.get(key)
        if found is None and not self.is_lasting:
            return
        assert isinstance(found, bytes), f"get gave {type(found).__name__}"
        assert found == value
        assert key in cache


def new_key() -> str:
    """A key as caches get them, never used before."""
    return uuid.uuid4().hex + uuid.uuid4().hex[:8]


def random_bytes(size: int) -> bytes:
    """Bytes that do not compress."""
    return random.randbytes(size)


def run_threads(work: Callable[[int], None], count: int) -> None:
    """Run ``work(number)`` in so many threads at once; raises what one of them raised."""
    errors: list[BaseException] = []
    start = threading.Barrier(count)

    def run(number: int) -> None:
        try:
            start.wait(_TIMEOUT_S)
            work(number)
        except BaseException as error:  # noqa: BLE001
            errors.append(error)

    threads = [threading.Thread(target=run, args=(n,), daemon=True) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(_TIMEOUT_S)
        assert not thread.is_alive(), f"a call did not return within {_TIMEOUT_S:g} s"
    if errors:
        raise errors[0]
