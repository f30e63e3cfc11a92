"""`twinbus faults proxy`: serve a fault proxy in the foreground until a signal."""

from __future__ import annotations

from contextlib import AsyncExitStack

from twinbus.broker.embedded import PORT_MAX
from twinbus.console.output import WrongUse
from twinbus.console.servers import log_to_stderr, stop_signal
from twinbus.loops import run_alone
from twinbus.namespace.address import bracketed
from twinbus.proxy.certificate import make_certificate, trust_lines
from twinbus.proxy.host import FaultProxy, upstream_of


def serve_proxy(port: int, upstream: str, seed: int, *, quiet: bool) -> int:
    """Relay until SIGTERM or Ctrl-C; how to connect goes to stdout, the log to stderr."""
    if not 0 <= port <= PORT_MAX:
        raise WrongUse(f"PORT is 0 (pick a free one) to {PORT_MAX}; got {port}")
    target = upstream_of(upstream)
    log_to_stderr(is_quiet=quiet)

    async def relay() -> None:
        async with AsyncExitStack() as stack:
            certificate = make_certificate(target.host)
            stack.callback(certificate.remove)
            proxy = FaultProxy(target, port=port, tls=certificate.context, seed=seed)
            stopping = stop_signal()
            await proxy.start()
            stack.push_async_callback(proxy.close)
            place = f"sb://{bracketed(target.host)}:{target.port}"
            print(f"proxy  localhost:{proxy.port} -> {place}", flush=True)
            if target.tls is None:
                text = f"Endpoint=sb://localhost:{proxy.port};...;UseDevelopmentEmulator=true;"
                print(f"without TLS, change the port in the connection string: {text}", flush=True)
            print("over TLS, keep the connection string and add to the client:", flush=True)
            for line in trust_lines(proxy.port, certificate.authority):
                print(f"  {line}", flush=True)
            print("to steer it, in another terminal:", flush=True)
            add = "twinbus faults add hang --entity orders --for 60s"
            print(f"  {add} --namespace '{proxy.steering_string}'", flush=True)
            print("ready; nothing is stored here; stop with Ctrl-C", flush=True)
            await stopping.wait()
        print("stopped", flush=True)

    run_alone(relay())
    return 0
