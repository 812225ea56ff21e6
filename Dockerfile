# Two images: `inspector` attaches to engines; `demo` also has the bundled engine, with the
# CPU build of torch: docker build --target inspector -t seqtop .
FROM python:3.13-slim AS inspector
WORKDIR /src
COPY pyproject.toml README.md LICENSE constraints.txt ./
COPY docs/seqtop.1 docs/seqtop.1
COPY seqtop seqtop
RUN pip install --no-cache-dir --constraint constraints.txt . && rm -rf /src
RUN useradd --create-home --uid 1000 seqtop
USER seqtop
WORKDIR /home/seqtop
ENTRYPOINT ["seqtop"]
CMD ["attach"]

FROM inspector AS demo
USER root
WORKDIR /src
COPY pyproject.toml README.md LICENSE constraints.txt ./
COPY docs/seqtop.1 docs/seqtop.1
COPY seqtop seqtop
COPY engine_stub engine_stub
RUN pip install --no-cache-dir uv \
    && uv pip install --system --no-cache --torch-backend cpu --constraint constraints.txt \
        '.[engine]' ./engine_stub \
    && rm -rf /src
USER seqtop
WORKDIR /home/seqtop
CMD ["demo"]
