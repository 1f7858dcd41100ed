"""Every setting, read from the environment (prefix HEADRACE_) once, validated and frozen.

The only module that reads `os.environ`. A HEADRACE_ variable that names no setting is an error: a typo
must not pass for a default. Units stand at the end of names.
"""

from __future__ import annotations

import os
import re
from typing import Literal, TypeVar

from pydantic import Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from shared.errors import ConfigurationError
from shared.faults import parse as parse_faults
from shared.servers.address import parse
from shared.servers.store_address import StoreAddress, parse_store

PREFIX = "HEADRACE_"
ADAPTER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")

PrefixScope = Literal["tenant", "shared", "off"]


def usable_cpus() -> frozenset[int]:
    """What this process may run on; as many as there are where the system does not say."""
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def parse_cpu_set(cores: str, usable: frozenset[int]) -> frozenset[int]:
    """`0-3,8` as numbers. Raises ValueError naming what is no range, or not in `usable`."""
    found: set[int] = set()
    for part in cores.split(","):
        match = re.fullmatch(r"(\d{1,4})(?:-(\d{1,4}))?", part.strip())
        if match is None or int(match[2] or match[1]) < int(match[1]):
            raise ValueError(f"'{part.strip()[:40]}' is no core and no range of cores, as in 0-3,8")
        found.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    if lacking := sorted(found - usable):
        named = ", ".join(map(str, lacking[:8]))
        allowed = ", ".join(map(str, sorted(usable)[:64]))
        raise ValueError(f"this process may not run on {named}; it may on {allowed}")
    return frozenset(found)


class _Settings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="forbid")


class RedisSettings(_Settings):
    """Where the queue is, and the clocks all processes share. Every process must be given the same clocks."""

    redis_url: str = "redis://127.0.0.1:6379/0"
    redis_timeout_s: float = Field(default=5.0, gt=0, le=60)
    redis_ca_file: str = ""
    redis_cert_file: str = ""
    redis_key_file: str = ""
    lease_ms: int = Field(default=6000, ge=200)
    heartbeat_ms: int = Field(default=1000, ge=20)
    reap_ms: int = Field(default=1500, ge=50)
    check_ms: int = Field(default=1000, ge=20)
    orphan_grace_ms: int = Field(default=30_000, ge=100)
    retention_s: int = Field(default=600, ge=1)
    max_crashes: int = Field(default=3, ge=1)
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    faults: str = Field(default="", max_length=4000)
    allow_faults: bool = False

    @field_validator("redis_url")
    @classmethod
    def _url_is_understood(cls, url: str) -> str:
        parse(url)
        return url

    @field_validator("faults")
    @classmethod
    def _faults_are_understood(cls, spec: str) -> str:
        try:
            parse_faults(spec)
        except ConfigurationError as error:
            raise ValueError(error.message) from error
        return spec

    @model_validator(mode="after")
    def _clocks_agree(self) -> RedisSettings:
        if self.heartbeat_ms * 3 > self.lease_ms:
            raise ValueError("heartbeat_ms must be at most a third of lease_ms")
        if self.reap_ms * 2 > self.lease_ms:
            raise ValueError("reap_ms must be at most half of lease_ms")
        return self

    @model_validator(mode="after")
    def _faults_are_meant(self) -> RedisSettings:
        if self.faults and not self.allow_faults:
            raise ValueError("failpoints are armed (faults): for drills only, and then allow_faults must be true")
        return self


class GatewaySettings(RedisSettings):
    host: str = "127.0.0.1"
    port: int = Field(default=8000, ge=0, le=65535)
    cors_origins: str = ""
    max_body_bytes: int = Field(default=4_000_000, ge=1000)
    max_header_bytes: int = Field(default=32_768, ge=4096, le=65_536)
    receive_timeout_s: float = Field(default=30.0, gt=0)
    max_waiting: int = Field(default=1000, ge=1)
    max_waiting_tokens: int = Field(default=2_000_000, ge=1)
    max_waiting_bytes: int = Field(default=256_000_000, ge=1000)
    class_weight_priority: float = Field(default=8.0, gt=0, le=1000)
    class_weight_default: float = Field(default=4.0, gt=0, le=1000)
    class_weight_flex: float = Field(default=1.0, gt=0, le=1000)
    class_weight_batch: float = Field(default=1.0, gt=0, le=1000)
    strict_fields: bool = False
    max_choices: int = Field(default=8, ge=1, le=128)
    start_deadline_s: float = Field(default=600.0, gt=0)
    keepalive_s: float = Field(default=10.0, gt=0)
    stall_timeout_s: float = Field(default=60.0, gt=0)
    model_poll_s: float = Field(default=1.0, gt=0)
    keys_file: str = ""
    require_keys: bool = False
    scaling_target_wait_s: float = Field(default=10.0, gt=0)
    scaling_utilisation: float = Field(default=0.8, gt=0, le=1)
    scaling_min_workers: int = Field(default=1, ge=0, le=10_000)
    scaling_max_workers: int = Field(default=64, ge=1, le=10_000)
    scaling_idle_s: float = Field(default=300.0, ge=0)
    scaling_tolerance: float = Field(default=0.1, ge=0, le=1)
    operator_key: SecretStr | None = Field(default=None, min_length=16)
    text_threads: int = Field(default=2, ge=1, le=64)
    data_dir: str = ".headrace"
    store_url: SecretStr | None = None
    store_ttl_s: int = Field(default=30 * 24 * 3600, ge=1)
    store_purge_s: float = Field(default=300.0, gt=0)
    file_store_url: str = ""
    max_file_bytes: int = Field(default=209_715_200, ge=1000)
    batch_queue_share: float = Field(default=0.5, gt=0, le=1)
    batch_max_in_flight: int = Field(default=512, ge=1, le=10_000)
    slo_ttft_s: float = Field(default=2.0, gt=0)
    slo_tpot_s: float = Field(default=0.1, gt=0)
    lane_ms: int = Field(default=100, ge=0, le=5000)
    prefix_cache: PrefixScope = "tenant"
    batch_lease_s: float = Field(default=10.0, ge=0.2, le=600)
    drain_timeout_s: float = Field(default=30.0, ge=0)

    @field_validator("cors_origins")
    @classmethod
    def _origins_are_origins(cls, setting: str) -> str:
        for origin in setting.split(","):
            if origin.strip() and not re.fullmatch(r"\*|[a-z][a-z0-9+.-]*://[^/,\s]+/?", origin.strip()):
                raise ValueError(f"'{origin.strip()[:80]}' is no origin: scheme://host[:port], or *")
        return setting

    @model_validator(mode="after")
    def _workers_are_a_range(self) -> GatewaySettings:
        if self.scaling_min_workers > self.scaling_max_workers:
            raise ValueError("scaling_min_workers must be at most scaling_max_workers")
        return self

    @field_validator("store_url")
    @classmethod
    def _store_is_understood(cls, url: SecretStr | None) -> SecretStr | None:
        parse_store(url.get_secret_value() if url else "", "")
        return url

    @property
    def store(self) -> StoreAddress:
        """The SQL store, with what `data_dir` says."""
        return parse_store(self.store_url.get_secret_value() if self.store_url else "", self.data_dir)


class WorkerSettings(RedisSettings):
    """`model` is a GGUF file, a Hugging Face folder, or the name of a packaged model (smollm2)."""

    model: str = "smollm2"
    model_name: str | None = None
    tool_format: Literal["auto", "hermes", "llama3", "mistral", "json", "none"] = "auto"
    reasoning_format: Literal["auto", "think", "none"] = "auto"
    backend: Literal["native", "vllm", "simulated"] = "native"
    device: str = "cpu"
    cpu_kernels: Literal["auto", "native", "torch"] = "auto"
    cpu_activations: Literal["int16", "mixed", "int8"] = "mixed"
    kernel_cache: str = ""
    gpu_kernels: Literal["auto", "triton", "torch"] = "auto"
    cuda_graphs: bool = True
    deterministic: bool = False
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    threads: int = Field(default=0, ge=0)
    max_num_seqs: int = Field(default=32, ge=1, le=1024)
    max_step_tokens: int = Field(default=512, ge=1)
    itl_target_ms: float = Field(default=25.0, ge=0)
    scheduling_policy: Literal["priority", "fcfs", "shortest"] = "priority"
    prefix_cache: PrefixScope = "tenant"
    overlap: bool = True
    speculation: Literal["off", "prompt_lookup"] = "off"
    speculation_tokens: int = Field(default=5, ge=1, le=16)
    kv_cache_mb: int = Field(default=0, ge=0)
    kv_cache_share: float = Field(default=0.0, ge=0, lt=1)
    kv_cache_type: Literal["auto", "float16", "float32"] = "auto"
    max_context: int = Field(default=0, ge=0)
    adapters: str = Field(default="", max_length=20_000)
    max_adapters: int = Field(default=8, ge=0, le=64)
    max_adapter_rank: int = Field(default=64, ge=1, le=512)
    drain_timeout_s: float = Field(default=30.0, ge=0)
    warmup_s: float = Field(default=20.0, ge=0, le=600)
    cpu_set: str = ""
    worker_name: str = Field(default="", pattern=r"^[A-Za-z0-9._-]{0,100}$")
    quarantine_failures: int = Field(default=3, ge=0, le=1000)
    quarantine_window_s: float = Field(default=300.0, gt=0)
    quarantine_pause_s: float = Field(default=5.0, gt=0, le=300)
    worker_metrics_host: str = "127.0.0.1"
    worker_metrics_port: int = Field(default=0, ge=0, le=65535)
    worker_metrics_vllm: bool = False
    vllm_block_size: int = Field(default=0, ge=0, le=1024)
    vllm_memory_share: float = Field(default=0.0, ge=0, lt=1)
    vllm_enforce_eager: bool = False
    sim_kv_tokens: int = Field(default=65_536, ge=64)
    sim_prefill_us_per_token: float = Field(default=200.0, ge=0)
    sim_step_us: float = Field(default=20_000.0, ge=0)
    sim_step_us_per_seq: float = Field(default=0.0, ge=0)

    @field_validator("cpu_set")
    @classmethod
    def _cores_exist(cls, cores: str) -> str:
        if cores not in ("", "auto"):
            parse_cpu_set(cores, usable_cpus())
        return cores

    @field_validator("adapters")
    @classmethod
    def _adapters_are_understood(cls, setting: str) -> str:
        _adapters(setting)
        return setting

    @property
    def adapter_paths(self) -> dict[str, str]:
        """Name -> folder."""
        return _adapters(self.adapters)


def _adapters(setting: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in setting.split(","))):
        name, _, path = part.partition("=")
        if not ADAPTER_NAME.fullmatch(name) or not path:
            raise ValueError(f"'{part[:80]}' is no name=path of an adapter (name: letters, digits, '.', '_', '-')")
        if name in found:
            raise ValueError(f"two adapters are named {name}")
        found[name] = path
    return found


class LauncherSettings(_Settings):
    """`headrace up`: how many of what on this machine. An empty `redis_url` starts the embedded server."""

    host: str = "127.0.0.1"
    port: int = Field(default=8000, ge=1, le=65535)
    workers: int = Field(default=1, ge=0, le=64)
    redis_url: str = ""
    model: str = "smollm2"
    data_dir: str = ".headrace"
    ready_timeout_s: float = Field(default=600.0, gt=0)
    drain_timeout_s: float = Field(default=30.0, ge=0)

    @field_validator("redis_url")
    @classmethod
    def _url_is_understood(cls, url: str) -> str:
        if url:
            parse(url)
        return url


S = TypeVar("S", bound=_Settings)
ALL_SETTINGS: tuple[type[_Settings], ...] = (GatewaySettings, WorkerSettings, LauncherSettings)


def load(kind: type[S], **overrides: object) -> S:
    """Read settings from the environment; `overrides` (from the command line) win over it.

    Raises ConfigurationError naming each wrong variable, its value's fault, and unknown variables.
    """
    known = {f"{PREFIX}{name.upper()}" for settings in ALL_SETTINGS for name in settings.model_fields}
    unknown = sorted(name for name in os.environ if name.startswith(PREFIX) and name not in known)
    if unknown:
        raise ConfigurationError(f"unknown settings in the environment: {', '.join(unknown)}")
    try:
        return kind(**{name: value for name, value in overrides.items() if value is not None})  # type: ignore[arg-type]
    except ValidationError as error:
        faults = "; ".join(
            f"{PREFIX}{'_'.join(map(str, fault['loc'])).upper()}: {fault['msg']}" for fault in error.errors()
        )
        raise ConfigurationError(f"bad settings: {faults}") from error
