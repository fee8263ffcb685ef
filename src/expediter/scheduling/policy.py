"""The waiting order that a configuration names."""

from typing import assert_never

from expediter.config import SchedulerConfig
from expediter.kvcache.manager import KVCacheManager
from expediter.scheduling.quotas import PrefixQuotas
from expediter.scheduling.waiting import Fcfs, LongestPrefix, Priority, WaitingQueue


def waiting_queue(config: SchedulerConfig, kv_cache: KVCacheManager) -> WaitingQueue:
    """An empty queue with `config`'s order; `kv_cache` tells the cache-aware ones what is held."""
    match config.policy:
        case "fcfs":
            return Fcfs()
        case "longest-prefix":
            return LongestPrefix(kv_cache=kv_cache, max_waiting=config.lpm_fallback_threshold)
        case "prefix-quotas":
            return PrefixQuotas(kv_cache=kv_cache, num_groups=config.num_priority_groups)
        case "priority":
            return Priority()
        case _:
            assert_never(config.policy)
