# The gateway: HTTP in, Redis out. No torch, no model.
ARG PYTHON_IMAGE=python:3.11-slim-bookworm

FROM ${PYTHON_IMAGE} AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python3 -m venv /opt/headrace
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY shared shared
COPY gateway gateway
COPY worker worker
COPY deploy deploy
COPY loadtest loadtest
RUN /opt/headrace/bin/pip install --constraint constraints.txt ".[postgresql]"

FROM ${PYTHON_IMAGE}
RUN useradd --uid 10001 --no-create-home --shell /usr/sbin/nologin headrace && install -d -o 10001 -m 700 /data
COPY --from=build /opt/headrace /opt/headrace
ENV PATH=/opt/headrace/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 \
    HEADRACE_HOST=0.0.0.0 HEADRACE_PORT=8000 HEADRACE_DATA_DIR=/data
USER 10001
WORKDIR /tmp
EXPOSE 8000
STOPSIGNAL SIGTERM
# Alive, not ready: a gateway without a model or without Redis must not be restarted for it.
HEALTHCHECK --interval=5s --timeout=3s --start-period=30s --retries=5 \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/health/live', timeout=2)"]
CMD ["python", "-m", "gateway.app"]
