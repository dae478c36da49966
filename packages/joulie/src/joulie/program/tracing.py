"""Optional OpenTelemetry traces: need the extra ``tracing``, and OTEL_EXPORTER_OTLP_ENDPOINT or ENABLE_TRACING."""

from __future__ import annotations

import logging
import os
from contextlib import AbstractContextManager, nullcontext
from typing import Any

_log = logging.getLogger(__name__)
_tracer: Any = None
_NO_SPAN = nullcontext()


def configure(service: str, *, enabled: bool = False) -> None:
    """Export the spans of this process by OTLP over HTTP, if enabled or if OTEL_EXPORTER_OTLP_ENDPOINT is set."""
    global _tracer  # noqa: PLW0603 - one tracer a process, as OpenTelemetry has one provider
    if not enabled and not os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT"):
        return
    try:
        from opentelemetry import trace
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        _log.warning("traces are enabled but OpenTelemetry is not installed: pip install joulie[tracing]")
        return
    provider = TracerProvider(resource=Resource.create({"service.name": service}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    _tracer = provider.get_tracer("joulie")


def span(name: str, **attributes: str | int | float | bool) -> AbstractContextManager[object]:
    """Context manager of a span; a no-op if tracing is disabled."""
    return _NO_SPAN if _tracer is None else _tracer.start_as_current_span(name, attributes=attributes)
