# One image for every part: `extproc serve`, `agent` and `emulate`, and Envoy itself.
FROM python:3.12-slim

ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PATH=/venv/bin:$PATH
WORKDIR /app
RUN python -m venv /venv

# Dependencies in a layer of their own, installed for an empty package: our code changes more often than they do.
COPY pyproject.toml constraints.txt README.md ./
RUN mkdir extproc && touch extproc/__init__.py \
 && python -m pip install --constraint constraints.txt '.[demo]' \
 && python -m pip uninstall --yes extproc

COPY extproc extproc
RUN python -m pip install --constraint constraints.txt --no-deps .
COPY envoy envoy

# Nothing here needs root, and nothing is written.
USER 65532:65532
ENTRYPOINT ["extproc"]
CMD ["serve"]
