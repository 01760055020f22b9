# The project with its environment. For a CPU:
#   docker build -t grpo --build-arg TORCH_ARGS="--index-url <address of an index of CPU wheels>" .
#   docker run --rm -v "$PWD/data:/project/data" grpo run ENV=smoke
# With CUDA, whose libraries come with the default torch wheel (the machine needs the NVIDIA container toolkit):
#   docker build -t grpo . && docker run --rm --gpus all -v "$PWD/data:/project/data" grpo run ENV=gpu
FROM python:3.11-slim-bookworm

ARG TORCH_ARGS=""
ENV DO_NOT_TRACK=1 \
    MLFLOW_DISABLE_TELEMETRY=true \
    PYTHONUNBUFFERED=1

SHELL ["/bin/bash", "-o", "pipefail", "-c"]
# RDKit draws with X11's libraries; git names the commit of a run.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --no-install-recommends --yes git libgomp1 libxext6 libxrender1 make \
    && rm -rf /var/lib/apt/lists/*

RUN useradd --create-home --uid 1000 user
WORKDIR /project
RUN chown user:user /project
USER 1000

# Packages first: a change of the code does not install them again.
COPY --chown=user:user Makefile pyproject.toml constraints.txt README.md LICENSE ./
COPY --chown=user:user src/grpo_pipeline/__init__.py src/grpo_pipeline/__init__.py
RUN make setup TORCH_ARGS="$TORCH_ARGS"

COPY --chown=user:user . .

VOLUME /project/data
EXPOSE 4141 5000
ENTRYPOINT ["make"]
CMD ["run"]
