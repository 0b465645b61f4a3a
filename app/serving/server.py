"""Runs an application on this machine's own Ray, or on a running cluster."""

from __future__ import annotations

import gc
import logging
import math
import os
import signal
import socket
import subprocess
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

from app.composition.operation import log_options
from app.composition.retrieval import watched_store
from app.config.serve import ServeConfig
from app.inputs.devices import AUTO, has_cuda_device
from app.playground.guard import is_loopback
from app.serving.application import deploy, stop_application, wait_until_ready
from app.serving.certificates import CertificateFiles, CertificateWatch, client_context
from app.serving.environment import (
    check_port,
    claim_ports,
    folder_for_sockets,
    local_environment,
    serve_environment,
    write_join_file,
)
from app.serving.haproxy import BINARY, LOOPBACK, in_url, install_certificate
from app.serving.preflight import check_gpus, check_model, check_store
from app.serving.progress import StartProgress
from app.serving.ray_session import end_ray, init_ray, log_folder, ray_address
from deployments.metrics.process import HTTPS_CERTIFICATE
from deployments.observability.logs import JSON, configure
from engine.errors import ConfigError
from speculators.kernels import start_compiling

if TYPE_CHECKING:
    from ray.serve import Application

ENABLE_HAPROXY = "RAY_SERVE_ENABLE_HA_PROXY"
SERVE_PROCESSES = 3  # the controller, HAProxy's manager, and the proxy that HAProxy falls back to


class Server:
    """A running application.

    Args:
        config: of the application.
        host: interface to listen on.
        port: to listen on.
        address: of a running Ray cluster to join; None: start a Ray of its own.
        certificate: for HTTPS; None: plain HTTP.
    """

    def __init__(
        self,
        config: ServeConfig,
        host: str,
        port: int,
        address: str | None = None,
        certificate: CertificateFiles | None = None,
    ) -> None:
        self.config = config
        self.host = host
        self.port = port
        self._address = address
        self._certificate = certificate
        self._serve_host = host  # interface on which Serve listens
        self._watch: CertificateWatch | None = None  # of the certificate, once the server starts
        self._scratch = tempfile.TemporaryDirectory(prefix="spectra-", dir=folder_for_sockets())
        self._compiling: subprocess.Popen[bytes] | None = None  # compiles methods during the first start
        self._ports: socket.socket | None = None  # claims this server's ports while it is open
        self._stop = threading.Event()
        self._ray_thread = ThreadPoolExecutor(1)  # must live as long as Ray: its processes die with their parent thread
        self._has_ray = False  # imported, and perhaps started
        self._is_deployed = False
        self._progress = StartProgress(config.log_format == JSON)
        self.announce = self._progress.announce

    @property
    def _base(self) -> str:
        return f"{'http' if self._certificate is None else 'https'}://{in_url(self.host)}:{self.port}"

    @property
    def url(self) -> str:
        """Base of the OpenAI API."""
        return f"{self._base}/v1"

    def start(self) -> None:
        """Start Ray (or join ``address``), deploy, and return once a request would succeed.

        Raises:
            ConfigError: the port is taken, an option or the certificate is wrong, or the application does not come up.
            UnsupportedModelError: the model or its tokenizer cannot be loaded.
        """
        check_port(self.host, self.port)
        self._check_certificate()
        device = self.config.stage_device
        if device != "cpu" and self._address is None and not has_cuda_device():
            raise ConfigError(f"--device is {device}, but no CUDA device was found on this machine")
        if self.config.device == AUTO and device == "cpu" and self._address is None and has_cuda_device():
            self._progress.say("--device auto is cpu, for no stage has a GPU: --stage-gpus 1 gives each stage one")
        if self._address is None and (compiling := start_compiling()) is not None:
            self._compiling = compiling
            self._progress.say("compiling the methods meanwhile (once)")
        self._set_environment()
        self._progress.say("loading Ray")
        gc.disable()  # collections would visit what imports allocate, and take a sixth of their time
        from ray import serve  # noqa: F401 - now: two threads that import parts of it could meet half-imported modules

        ray = "starting Ray and Serve" if self._address is None else f"joining Ray at {self._address}"
        self._progress.say(f"{ray}; meanwhile checking model {self.config.model} and its settings")
        application = self._check_while_ray_starts()
        if not self.stopping:
            check_gpus(self.config, self._progress.say, is_local=self._address is None)
            if self._address is None:
                joins = write_join_file(Path(self._scratch.name), ray_address())
                self._progress.say(f"started Ray; `. {joins}` lets a shell's programs join it, for handles")
            self._progress.say(f"deploying the application; logs: {log_folder()}")
            if self._address is not None:
                self._start_serve()
            self._is_deployed = True
            deploy(application)
            wait_until_ready(self._base, self._client, self._progress, self._stop)
            if self._watch is not None:
                self._watch.start()

    def _check_certificate(self) -> None:
        if self._certificate is None:
            return
        if self._address is not None:
            raise ConfigError(
                "--tls-cert and --ray-address exclude each other: the proxies of a joined cluster have settings of "
                "their own; terminate TLS in front of them"
            )
        if os.environ.get(ENABLE_HAPROXY, "1") != "1":
            raise ConfigError(f"--tls-cert needs HAProxy, but {ENABLE_HAPROXY} is {os.environ[ENABLE_HAPROXY]!r}")
        scratch = Path(self._scratch.name)
        path = scratch / "certificate.pem"
        self._watch = CertificateWatch(self._certificate, path, partial(install_certificate, scratch, path))

    def _set_environment(self) -> None:
        self._ports = claim_ports()
        bundle = None if self._watch is None else self._watch.path
        values = serve_environment(self._scratch.name, self._ports.getsockname()[1], self.host, bundle)
        if self._address is None:
            values |= local_environment()
        elif {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & os.environ.keys():
            values["RAY_AUTH_MODE"] = "token"  # or Ray would not send it
        for name, value in values.items():
            os.environ.setdefault(name, value)
        if bundle is not None:
            os.environ[HTTPS_CERTIFICATE] = str(bundle)  # a metric shows how long it is valid
        if BINARY in values:  # the script starts the program that the environment named before
            os.environ[BINARY] = values[BINARY]
        if self._address is None and BINARY in values and os.environ[ENABLE_HAPROXY] == "1":
            self._serve_host = LOOPBACK  # only HAProxy listens for clients
        if self.config.log_format == JSON:
            os.environ.setdefault("RAY_BACKEND_LOG_JSON", "1")  # for Ray's own processes

    def _client(self, timeout: float) -> httpx.Client:
        """Return a client for requests of this server to itself, which bypass any proxy."""
        trust = True if self._watch is None else client_context(self._watch.bundle)
        return httpx.Client(timeout=timeout, verify=trust, trust_env=False)

    def _check_while_ray_starts(self) -> Application:
        """Start Ray in one thread and check the configuration in another; return the application. Raises as ``start``.

        This thread handles the signals: Ray's handlers would end the process at once and leave Ray's processes behind.
        """
        self._has_ray = True
        with ThreadPoolExecutor(1) as checks:
            checking, starting = checks.submit(self._checked_application), self._ray_thread.submit(self._start_ray)
            while wait((checking, starting), timeout=0.02).not_done:
                self.install_signals()
                if checking.done() and checking.exception():
                    self._stop.set()  # so that Ray does not start Serve
        self.install_signals()
        application = checking.result()
        starting.result()
        return application

    def _checked_application(self) -> Application:
        try:
            from app.builder import application
        finally:
            gc.enable()
        check_model(self.config, is_local=self._address is None)
        check_store(self.config, self._progress.say)
        is_private = self._address is None and self._certificate is None and is_loopback(self.host)
        return application(self.config, is_private=is_private)

    def _start_ray(self) -> None:
        """Start Ray and Serve, or join Ray, whose Serve starts with the application."""
        options: dict[str, Any] = {"address": self._address, "log_to_driver": False, "configure_logging": False}
        if self._address is None:
            options |= {
                "address": "local",  # never some other cluster that happens to run here
                "num_cpus": self._cpus(),
                "include_dashboard": False,
                "object_store_memory": 128 << 20,
            }
        try:
            init_ray(options)
        except Exception as error:  # of many kinds
            if self._address is None:
                raise
            raise ConfigError(
                f"--ray-address {self._address!r} cannot be joined: {str(error).splitlines()[0]}; a cluster that asks "
                "for a token wants it in RAY_AUTH_TOKEN, or its file in RAY_AUTH_TOKEN_PATH"
            ) from error
        if self._address is None and not self.stopping:
            self._start_serve()

    def _start_serve(self) -> None:
        from ray import serve
        from ray.serve.config import HTTPOptions
        from ray.serve.schema import LoggingConfig

        configure(log_options(self.config), "serve")  # Serve has just brought a handler of its own
        logging.getLogger("ray.serve").setLevel(logging.WARNING)
        logs = LoggingConfig(encoding=self.config.log_format.upper(), log_level=self.config.log_level.upper())
        serve.start(http_options=HTTPOptions(host=self._serve_host, port=self.port), logging_config=logs)

    def _cpus(self) -> int:
        """Ray CPUs of a local cluster: what the application reserves, but one a process, so that all start at once."""
        config, n_targets = self.config, self.config.most_pipelines
        n_processes = config.stages * config.tensor_parallel + config.standby_stages
        pipeline = n_processes * max(config.stage_cpus, 0.001) + 0.1
        others = 1 + config.speculator_actors + config.ingress_replicas + (watched_store(config) is not None)
        reserved = n_targets * pipeline + 2 * 0.1 * others  # old and new in a redeploy
        return max(math.ceil(reserved), SERVE_PROCESSES + n_targets + others)

    @property
    def stopping(self) -> bool:
        """Whether a signal has arrived."""
        return self._stop.is_set()

    def wait(self) -> None:
        """Block until SIGINT or SIGTERM."""
        self._stop.wait()

    def install_signals(self) -> None:
        """Stop on SIGINT and SIGTERM, even if the shell started this process with SIGINT ignored."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: self._stop.set())

    def stop(self) -> None:
        """Stop all that ``start`` started: let running requests finish within the grace period, end other streams."""
        if self._has_ray:
            import ray

            if self._is_deployed and ray.is_initialized():  # Serve's shutdown would start a cluster if there is none
                stop_application(self._base, self._client, self.config.grace, is_local=self._address is None)
            if self._address is None:
                end_ray()
            else:
                ray.shutdown()
        self._ray_thread.shutdown()
        if self._compiling is not None:
            self._compiling.kill()
            self._compiling.wait()
        if self._watch is not None:
            self._watch.stop()
        self._scratch.cleanup()
        if self._ports is not None:
            self._ports.close()
